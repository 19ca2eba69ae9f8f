"""Streams over WebSockets that are kept open without frames, or fed as fast as they are read."""

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from tests import costly_files as files
from tests.attack.target import Target, cases, counted
from tests.attack.websocket import BINARY, CONTINUATION, PING, TEXT, Stream, frame


@contextmanager
def _streams(target: Target, count: int, *, reads: bool = True) -> Iterator[list[Stream]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Stream(target, reads=reads)) for _ in range(count)]


def _all(target: Target) -> int:
    return target.max_streams * target.workers


def _flood(target: Target, count: int, unit: bytes, *, reads: bool = True) -> str:
    """Send a unit repeatedly as fast as the service takes it, on `count` streams."""
    piece = unit * max(1, (1 << 16) // len(unit))
    ends = time.monotonic() + target.hold_seconds

    def send(stream: Stream) -> int:
        taken = 0
        stream.connection.settimeout(target.hold_seconds)
        while time.monotonic() < ends and not stream.ended and stream.send_raw(piece):
            taken += len(piece)
        return taken

    with _streams(target, count, reads=reads) as streams, ThreadPoolExecutor(count) as threads:
        sent = sum(threads.map(send, streams))
        return f"{counted(streams)}, {sent / 2**20:.0f} MiB taken, {sum(each.messages for each in streams)} messages"


def _kept(target: Target, data: bytes = b"") -> str:
    """Open every stream that the limit allows, and send something on each."""
    with _streams(target, _all(target)) as streams:
        for stream in streams:
            stream.send_raw(data)
        time.sleep(target.hold_seconds)
        return counted(streams)


def _streams_that_come_again(target: Target) -> str:
    ends = time.monotonic() + target.hold_seconds
    opened = 0
    with ExitStack() as stack:
        streams: list[Stream] = []
        while time.monotonic() < ends:
            streams = [stream for stream in streams if not stream.ended]
            for _ in range(_all(target) - len(streams)):
                with contextlib.suppress(OSError):
                    streams.append(stack.enter_context(Stream(target)))
                    opened += 1
            threading.Event().wait(0.02)
    return f"{opened} opened"


# fmt: off
CASES = cases(
    ("texts", "Eight streams that send small texts as fast as the socket takes them",
     lambda target: _flood(target, 8, frame(TEXT, b'{"top_k": 3}'))),
    ("pings-that-are-not-read", "A stream that sends pings of 125 bytes, and reads no pong",
     lambda target: _flood(target, 1, frame(PING, bytes(125)), reads=False)),
    ("empty-fragments", "A stream that sends messages of a thousand empty parts",
     lambda target: _flood(target, 1, frame(BINARY, b"", final=False) +
                           frame(CONTINUATION, b"", final=False) * 1_000 + frame(CONTINUATION, b"x"))),
    ("frames-of-one-byte", "A stream that sends frames of one byte",
     lambda target: _flood(target, 1, frame(BINARY, b"x"))),
    ("frames-of-49-megapixels", "A stream of black PNGs of 49 megapixels, as fast as they are taken",
     lambda target: _flood(target, 1, frame(BINARY, files.black_png(7_000)))),
    ("streams-without-a-frame", "Every stream the limit allows is open and sends nothing", _kept),
    ("frames-that-do-not-end", "Every stream the limit allows sends a frame of 4 MiB without its last byte",
     lambda target: _kept(target, frame(BINARY, bytes(4 * 2**20))[:-1])),
    ("streams-that-come-again", "One client opens every stream the limit allows, and reopens each that is closed",
     _streams_that_come_again),
)
# fmt: on
