"""A video through a stream of a running service: the answers, and the segments in which the label stays."""

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.sync.client import ClientConnection, connect

from gateway.bulk.capture import VideoFrame
from gateway.errors import UserError

OPEN_SECONDS = 30.0
ANSWER_SECONDS = 120.0
FRAME_COLUMNS = ("frame", "seconds", "status", "label", "score", "frame_label", "frame_score", "dropped", "error")
SEGMENT_COLUMNS = ("start", "end", "label", "score", "frames")


class StreamRefused(UserError):
    """The service does not take the stream, or has ended it; the message has its reason."""


@dataclass(frozen=True, slots=True)
class FrameAnswer:
    """What the service says of one frame; `label` and `score` are the sequence's, where there is one."""

    frame: int
    seconds: float
    label: str
    score: float
    frame_label: str
    frame_score: float
    dropped: int
    error: str

    @property
    def row(self) -> dict[str, Any]:
        """By FRAME_COLUMNS."""
        status = "error" if self.error else "ok"
        return {"status": status, **{name: getattr(self, name) for name in FRAME_COLUMNS if name != "status"}}


def follow(
    url: str, frames: Iterable[VideoFrame], parameters: Mapping[str, object], api_key: str | None = None
) -> Iterator[FrameAnswer]:
    """Send frames and yield their answers in order; raises StreamRefused, and what reading the frames raises."""
    query = urlencode([(name, value) for name, value in parameters.items() if value is not None])
    address = f"{url.rstrip('/').replace('http', 'ws', 1)}/stream?{query}"
    headers = {"X-API-Key": api_key} if api_key else {}
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(
                connect(address, additional_headers=headers, compression=None, open_timeout=OPEN_SECONDS, proxy=None)
            )
        except InvalidStatus as exc:
            raise StreamRefused(f"{url} refuses the stream: {_reason(exc)}") from exc
        except (OSError, InvalidURI, InvalidHandshake) as exc:
            raise StreamRefused(f"{url} cannot be reached: {exc}; start the service with `gateway up`") from exc
        yield from _through(stream, frames)


def _through(stream: ClientConnection, frames: Iterable[VideoFrame]) -> Iterator[FrameAnswer]:
    """Send on a thread of its own, and read."""
    times: list[float] = []
    failures: list[Exception] = []

    def send() -> None:
        try:
            with suppress(ConnectionClosed):  # whoever reads the answers says why
                for frame in frames:
                    times.append(frame.seconds)
                    stream.send(frame.jpeg)
                stream.send('{"end": true}')
        except Exception as exc:  # raised again by the reader
            failures.append(exc)
            stream.close()

    threading.Thread(target=send, name="frames", daemon=True).start()
    try:
        yield from _answers(stream, times)
    except StreamRefused:
        if not failures:
            raise
    if failures:
        raise failures[0]


def _answers(stream: ClientConnection, times: list[float]) -> Iterator[FrameAnswer]:
    fault = ""
    while True:
        try:
            message = json.loads(stream.recv(ANSWER_SECONDS))
        except TimeoutError:
            raise StreamRefused(f"no answer came within {ANSWER_SECONDS:g} s") from None
        except ConnectionClosed as exc:
            if exc.rcvd is not None and exc.rcvd.code == 1000:
                return
            words = fault or (f"{exc.rcvd.reason or 'no reason'} ({exc.rcvd.code})" if exc.rcvd else "it is gone")
            raise StreamRefused(f"the service has ended the stream: {words}") from exc
        if message["type"] == "error":
            fault = message["error"]["message"]
        elif message["type"] == "frame":
            yield _answer(message, times[message["frame"]])


def _answer(message: dict[str, Any], seconds: float) -> FrameAnswer:
    frame_label, frame_score = _best(message)
    label, score = _best(message["sequence"]) if message["sequence"] else (frame_label, frame_score)
    error = message["error"]["code"] if message["error"] else ""
    return FrameAnswer(message["frame"], seconds, label, score, frame_label, frame_score, message["dropped"], error)


def _best(told: dict[str, Any]) -> tuple[str, float]:
    predictions: list[dict[str, Any]] = told["predictions"]
    return (predictions[0]["label"], predictions[0]["score"]) if predictions else ("", 0.0)


def _reason(exc: InvalidStatus) -> str:
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(exc.response.body or b"")["detail"])
    return f"it answers {exc.response.status_code}"


def segments(answers: Iterable[FrameAnswer]) -> Iterator[dict[str, Any]]:
    """Where the label stays: rows by SEGMENT_COLUMNS, each until the next one begins; frames with errors are left out.

    `score` is the mean over the segment.
    """
    begun: FrameAnswer | None = None
    last = 0.0
    total, count = 0.0, 0
    for answer in answers:
        if answer.error:
            continue
        if begun is None or answer.label != begun.label:
            if begun is not None:
                yield _segment(begun, answer.seconds, total, count)
            begun, total, count = answer, 0.0, 0
        total, count, last = total + answer.score, count + 1, answer.seconds
    if begun is not None:
        yield _segment(begun, last, total, count)


def _segment(begun: FrameAnswer, end: float, total: float, count: int) -> dict[str, Any]:
    score = round(total / count, 6)
    return {
        "start": round(begun.seconds, 3),
        "end": round(end, 3),
        "label": begun.label,
        "score": score,
        "frames": count,
    }
