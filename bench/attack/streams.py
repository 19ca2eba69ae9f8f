"""Streams that are kept open without frames, or fed as fast as they take it."""

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from bench.attack import files
from bench.attack.parsers import SMALL_BMP
from bench.attack.target import Attacks, PromiseBroken, ServiceOptions, Target
from bench.attack.websocket import BINARY, PING, TEXT, Stream, frame, summary_of_streams
from gateway.keys import add_key, remove_key

ATTACKS = Attacks()
STREAMS = 64
"""Streams that one process serves by default."""
IDLE_SECONDS = 2.0
"""GATEWAY_STREAM_IDLE_SECONDS where streams are kept without a frame."""
KEPT_SECONDS = 4 * IDLE_SECONDS
SERVED_SECONDS = 2.0
"""Limit for the time until another client has a stream and its first answer."""
REMOVED_SECONDS = 6.0
"""Limit for the time until a stream ends after its key was removed: 5 s, and one for a busy machine."""
CONTINUATION = 0


@ATTACKS.add(per_second=True)
def large_texts(target: Target) -> str:
    """A stream that sends texts of 32,000 characters and a thousand labels."""
    labels = ",".join(f'"{number:027}"' for number in range(1_000))
    return _flood(target, 1, frame(TEXT, b'{"labels": [%b]}' % labels.encode()))


@ATTACKS.add(per_second=True)
def empty_fragments(target: Target) -> str:
    """A stream that sends messages of a thousand empty parts."""
    parts = frame(BINARY, b"", final=False) + frame(CONTINUATION, b"", final=False) * 1_000
    return _flood(target, 1, parts + frame(CONTINUATION, b"x"))


@ATTACKS.add(per_second=True)
def large_frames_that_do_not_end(target: Target) -> str:
    """Every stream the limit allows sends a frame of 4 MiB without its last byte."""
    data = frame(BINARY, bytes(4 * 2**20))[:-1]
    with _streams(target, target.max_streams * target.workers) as streams:
        for stream in streams:
            stream.send_raw(data)
        time.sleep(target.hold_seconds)
        return summary_of_streams(streams)


@ATTACKS.add(requests=STREAMS)
def streams_without_a_frame(target: Target) -> str:
    """Every stream the limit allows is open and sends nothing; another client opens one."""
    with _streams(target, target.max_streams * target.workers) as streams:
        time.sleep(min(1, target.hold_seconds))
        _serve_another(target)
        return summary_of_streams(streams)


@ATTACKS.add(requests=STREAMS)
def streams_that_come_again(target: Target) -> str:
    """One client opens every stream the limit allows, and reopens each that is closed; another client opens one."""
    done = threading.Event()
    opened = 0

    def open_again() -> None:
        nonlocal opened
        with ExitStack() as stack:
            streams: list[Stream] = []
            while not done.is_set():
                streams = [stream for stream in streams if not stream.ended]
                for _ in range(target.max_streams * target.workers - len(streams)):
                    with contextlib.suppress(OSError):
                        streams.append(stack.enter_context(Stream(target)))
                        opened += 1
                done.wait(0.02)

    attacker = threading.Thread(target=open_again)
    attacker.start()
    try:
        time.sleep(target.hold_seconds / 2)
        _serve_another(target)
    finally:
        done.set()
        attacker.join()
    return f"{opened} opened"


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
        answered = sum(stream.messages for stream in streams)
        return f"{summary_of_streams(streams)}, {sent / 2**20:.0f} MiB taken, {answered} messages"


@contextmanager
def _streams(target: Target, count: int, *, reads: bool = True) -> Iterator[list[Stream]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Stream(target, reads=reads)) for _ in range(count)]


def _kept(target: Target, sent: bytes, first: bytes = b"", *, may_stay: bool = False) -> str:
    """Send something on each stream twice within IDLE_SECONDS, for KEPT_SECONDS, while another client opens one."""
    done = threading.Event()
    with _streams(target, target.max_streams * target.workers) as streams:

        def keep() -> None:
            while not done.wait(IDLE_SECONDS / 2):
                for stream in streams:
                    if not stream.ended:
                        stream.send_raw(sent)

        for stream in streams:
            stream.send_raw(first or sent)
        keeping = threading.Thread(target=keep)
        keeping.start()
        try:
            _serve_another(target)
            time.sleep(KEPT_SECONDS)
        finally:
            done.set()
            keeping.join()
        return summary_of_streams(streams) if may_stay else _all_closed(streams)


def _all_closed(streams: list[Stream]) -> str:
    """Raise PromiseBroken where a stream without a frame is still open."""
    answer = summary_of_streams(streams)
    if kept := sum(not stream.ended for stream in streams):
        raise PromiseBroken(f"{kept} of {len(streams)} streams without a frame are open after {KEPT_SECONDS:.0f} s")
    return answer


def _serve_another(target: Target) -> None:
    """Open a stream as another client, with retries; raises PromiseBroken after SERVED_SECONDS."""
    began = time.monotonic()
    status = 0
    while time.monotonic() - began < SERVED_SECONDS:
        with contextlib.suppress(OSError), Stream(target) as stream:
            status = stream.status
            stream.send(BINARY, SMALL_BMP)
            if stream.wait(SERVED_SECONDS, messages=1) and stream.messages:
                return
        time.sleep(0.1)
    raise PromiseBroken(f"another client got no stream within {SERVED_SECONDS:.0f} s, but {status}")


def _removed(target: Target, sent: bytes) -> str:
    assert target.keys_file is not None
    key = add_key(target.keys_file, name := f"removed-{time.monotonic_ns()}")
    with Stream(replace(target, key=key)) as stream:
        stream.send(BINARY, SMALL_BMP)
        stream.wait(10, messages=1)
        remove_key(target.keys_file, name)
        ends = time.monotonic() + REMOVED_SECONDS
        while time.monotonic() < ends and not stream.wait(0.5):
            stream.send_raw(sent)
        if not stream.ended:
            raise PromiseBroken(f"a stream goes on {REMOVED_SECONDS:.0f} s after its key was removed")
        return summary_of_streams([stream])


IDLE = ServiceOptions(settings=(("stream_idle_seconds", IDLE_SECONDS),))
KEYED = ServiceOptions(keys=True)

# fmt: off
ATTACKS.rows(
    ("texts-as-fast-as-they-are-taken", "A stream that sends small texts as fast as the socket takes them",
     lambda target: _flood(target, 1, frame(TEXT, b'{"top_k": 3}'))),
    ("texts-on-eight-streams", "Eight streams that send small texts as fast as the socket takes them",
     lambda target: _flood(target, 8, frame(TEXT, b'{"top_k": 3}'))),
    ("texts-whose-answers-are-not-read", "A stream that sends small texts, and reads nothing",
     lambda target: _flood(target, 1, frame(TEXT, b'{"top_k": 3}'), reads=False)),
    ("nested-texts", "A stream that sends texts of 32,000 brackets",
     lambda target: _flood(target, 1, frame(TEXT, b"[" * 32_000))),
    ("empty-texts", "A stream that sends empty texts",
     lambda target: _flood(target, 1, frame(TEXT, b""))),
    ("pings", "A stream that sends pings of 125 bytes",
     lambda target: _flood(target, 1, frame(PING, bytes(125)))),
    ("pings-that-are-not-read", "A stream that sends pings of 125 bytes, and reads no pong",
     lambda target: _flood(target, 1, frame(PING, bytes(125)), reads=False)),
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
    ("frames-in-jpeg2000", "A stream of JPEG 2000 images of 49 megapixels",
     lambda target: _flood(target, 1, frame(BINARY, files.jpeg2000(7_000, 500)))),
    per_second=True,
)
ATTACKS.rows(
    ("streams-kept-by-texts", "Every stream the limit allows sends a text each second; another client opens one",
     lambda target: _kept(target, frame(TEXT, b"{}"))),
    ("streams-kept-by-pings", "Every stream the limit allows sends a ping each second; another client opens one",
     lambda target: _kept(target, frame(PING, b""))),
    ("streams-kept-by-parts", "Every stream the limit allows sends a part of an endless frame each second",
     lambda target: _kept(target, frame(CONTINUATION, b"x", final=False), first=frame(BINARY, b"x", final=False))),
    ("streams-kept-by-junk", "Every stream the limit allows sends a frame that is no image each second",
     lambda target: _kept(target, frame(BINARY, b"x"), may_stay=True)),
    requests=STREAMS,
    options=IDLE,
)
ATTACKS.rows(
    ("stream-whose-key-is-removed", "A stream that goes on with frames after its API key was removed",
     lambda target: _removed(target, frame(BINARY, SMALL_BMP))),
    ("silent-stream-whose-key-is-removed", "A stream that sends nothing after its API key was removed",
     lambda target: _removed(target, b"")),
    options=KEYED,
)
# fmt: on
