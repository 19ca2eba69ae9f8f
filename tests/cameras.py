"""Simulated cameras that send unique frames to a running gateway, and check what a client sees.

The responses are in order, the numbers of dropped frames explain the gaps, and the time from a frame to its response
is measured.
"""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

PHOTO = Path(__file__).resolve().parents[1] / "docs" / "examples" / "cat.jpg"
CLOSING_SECONDS = 60.0


@dataclass
class Seen:
    """The results of one stream; `seconds` are from sending a frame to its response."""

    sent: int = 0
    frames: list[int] = field(default_factory=list)
    dropped: int = 0
    failed: int = 0
    restarted: int = 0
    unsteadied: int = 0
    """Responses without the sequence's scores, such as when all sequence slots are taken."""
    seconds: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def take(self, answer: dict[str, object], sent_at: Sequence[float]) -> None:
        """Check the response to a frame."""
        number = int(str(answer["frame"]))
        before = self.frames[-1] if self.frames else -1
        dropped = int(str(answer["dropped"]))
        self.dropped += dropped
        if number <= before:
            self.faults.append(f"frame {number} came after frame {before}")
        self.frames.append(number)
        self.seconds.append(time.perf_counter() - sent_at[number])
        if answer["status"] != "ok":
            self.failed += 1
        sequence = answer["sequence"]
        if isinstance(sequence, dict):
            self.restarted += bool(sequence["restarted"])
            self.unsteadied += sequence["error"] is not None


def picture(photo: bytes) -> bytes:
    """The photograph with a unique comment, so that no cache has it."""
    words = random.randbytes(12)
    return photo[:2] + b"\xff\xfe" + (len(words) + 2).to_bytes(2, "big") + words + photo[2:]


async def camera(url: str, photo: bytes, *, fps: float, seconds: float) -> Seen:
    """Send frames at a rate, then wait for every response."""
    seen, sent_at = Seen(), list[float]()
    address = url.replace("http", "ws", 1) + "/stream?top_k=1"
    async with connect(address, proxy=None, compression=None, open_timeout=CLOSING_SECONDS) as stream:
        reading = asyncio.create_task(_read(stream, seen, sent_at))
        begun = time.perf_counter()
        try:
            while (now := time.perf_counter()) < begun + seconds and not reading.done():
                sent_at.append(now)
                await stream.send(picture(photo))
                seen.sent += 1
                await asyncio.sleep(max(0.0, begun + seen.sent / fps - time.perf_counter()))
            await stream.send('{"end": true}')
        except ConnectionClosed:
            pass  # _read records the reason
        async with asyncio.timeout(CLOSING_SECONDS):
            await reading
    if not seen.faults and len(seen.frames) + seen.dropped != seen.sent:
        seen.faults.append(f"{seen.sent} sent, {len(seen.frames)} answered, {seen.dropped} reported as dropped")
    return seen


async def _read(stream: ClientConnection, seen: Seen, sent_at: Sequence[float]) -> None:
    try:
        while True:
            answer = json.loads(await stream.recv())
            if answer["type"] == "frame":
                seen.take(answer, sent_at)
    except ConnectionClosed as exc:
        if exc.rcvd is None or exc.rcvd.code != 1000:
            seen.faults.append(f"closed: {exc}")


async def cameras(url: str, *, streams: int, fps: float, seconds: float) -> list[Seen]:
    """Run several cameras at the same time."""
    photo = PHOTO.read_bytes()
    return await asyncio.gather(*(camera(url, photo, fps=fps, seconds=seconds) for _ in range(streams)))
