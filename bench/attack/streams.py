"""Streams over WebSockets that are kept open without frames, or fed as fast as they are read."""

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from bench import costly_files as files
from bench.attack.target import Target, cases, counted
from bench.attack.websocket import BINARY, CONTINUATION, PING, TEXT, Stream, frame

LABELS = ",".join(f'"{number:027}"' for number in range(1_000)).encode()


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
CASES = [
    *cases(
        ("texts", "A stream that sends small texts as fast as the socket takes them",
         lambda target: _flood(target, 1, frame(TEXT, b'{"top_k": 3}'))),
        ("texts-on-eight-streams", "Eight streams that send small texts as fast as the socket takes them",
         lambda target: _flood(target, 8, frame(TEXT, b'{"top_k": 3}'))),
        ("texts-whose-answers-are-not-read", "A stream that sends small texts, and reads nothing",
         lambda target: _flood(target, 1, frame(TEXT, b'{"top_k": 3}'), reads=False)),
        ("large-texts", "A stream that sends texts of 32,000 characters and a thousand labels",
         lambda target: _flood(target, 1, frame(TEXT, b'{"labels": [%b]}' % LABELS))),
        ("nested-texts", "A stream that sends texts of 32,000 brackets",
         lambda target: _flood(target, 1, frame(TEXT, b"[" * 32_000))),
        ("pings", "A stream that sends pings of 125 bytes",
         lambda target: _flood(target, 1, frame(PING, bytes(125)))),
        ("pings-that-are-not-read", "A stream that sends pings of 125 bytes, and reads no pong",
         lambda target: _flood(target, 1, frame(PING, bytes(125)), reads=False)),
        ("empty-fragments", "A stream that sends messages of a thousand empty parts",
         lambda target: _flood(target, 1, frame(BINARY, b"", final=False) +
                               frame(CONTINUATION, b"", final=False) * 1_000 + frame(CONTINUATION, b"x"))),
        ("frames-of-one-byte", "A stream that sends frames of one byte",
         lambda target: _flood(target, 1, frame(BINARY, b"x"))),
        ("frames-of-four-mebibytes", "Eight streams that send frames of 4 MiB that are no image",
         lambda target: _flood(target, 8, frame(BINARY, b"\xff\xd8\xff\xe0" + bytes(4 * 2**20 - 4)))),
        ("frames-of-49-megapixels", "A stream of black PNGs of 49 megapixels, as fast as they are taken",
         lambda target: _flood(target, 1, frame(BINARY, files.black_png(7_000)))),
        ("frames-of-49-megapixels-on-eight-streams", "Eight streams of black PNGs of 49 megapixels",
         lambda target: _flood(target, 8, frame(BINARY, files.black_png(7_000)))),
        ("frames-of-many-scans", "A stream of progressive JPEGs of 49 megapixels and 20 scans",
         lambda target: _flood(target, 1, frame(BINARY, files.progressive_jpeg_of_many_scans(7_000, 20)))),
    ),
    *cases(
        ("streams-without-a-frame", "Every stream the limit allows is open and sends nothing", _kept),
        ("frames-that-do-not-end", "Every stream the limit allows sends a frame of 4 MiB without its last byte",
         lambda target: _kept(target, frame(BINARY, bytes(4 * 2**20))[:-1])),
        ("streams-that-come-again", "One client opens every stream the limit allows, and reopens each that is closed",
         _streams_that_come_again),
        beside="stream",
    ),
]
# fmt: on
