"""A connection leaves nothing to the garbage collector, whose full collections block the event loop.

400 clients that reset a stream's handshake left 80,000 objects that referred to each other: a pause of 380 ms.
"""

import gc
from collections import Counter
from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY

from tests.doubles.backend import frame, frame_backend
from tests.fuzz.streams import request
from tests.gateway.server.raw import exchange
from tests.processes import wait_for
from tests.services import stream_service

TIMES = 10
STREAM = request(query=b"?smoothing=none")
CLOSE = b"\x88\x80\0\0\0\0"
PICTURE = frame(200)
PARTS = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n' + PICTURE + b"\r\n--b--\r\n"


def post(media_type: str, body: bytes, length: int = 0) -> bytes:
    """A request of `POST /predict`; its body may announce more than it has."""
    head = f"Content-Type: {media_type}\r\nContent-Length: {length or len(body)}\r\n"
    return b"POST /predict HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + head.encode() + b"\r\n" + body


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with stream_service(frame_backend(), loop="uvloop") as (host, _):
        # What earlier tests have made would take a quarter of a second in each collection.
        gc.collect()
        gc.freeze()
        yield int(host.rpartition(":")[2])


@pytest.mark.parametrize(
    ("sent", "resets"),
    [
        (b"GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", False),
        (b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", False),
        (b"?\r\n\r\n", False),
        (b"GET /x HT", True),
        (post("image/png", PICTURE), False),
        (post("image/png", b"hello"), False),
        (post("image/png", PICTURE, 50_000), True),
        (post("multipart/form-data; boundary=b", PARTS), False),
        (post("multipart/form-data; boundary=b", PARTS[:-5]), False),
        (post("application/json", b"{"), False),
        (STREAM.replace(b": Upgrade\r\n", b": Upgrade, close\r\nContent-Length: 5\r\n"), False),
        (STREAM, True),
        (STREAM.replace(b"==", b"") + 100 * b"x", False),
        (STREAM.replace(b"smoothing=none", b"top_k=x"), False),
        (STREAM + CLOSE, False),
        (STREAM + b"\x82\x85\0\0\0\0hello" + CLOSE, False),
        (STREAM + b"\0\0", False),
    ],
    ids=[
        "live", "not found", "no HTTP", "half a request", "upload", "no image", "upload that is cut", "form",
        "form without an end", "bad JSON", "upgrade with a body", "handshake that is reset", "bad handshake",
        "refused handshake", "stream", "frame", "bad frame",
    ],
)  # fmt: skip
def test_connection_leaves_no_garbage(port: int, sent: bytes, resets: bool):
    def collected() -> list[object]:
        """What only the garbage collector finds, of the gateway's and of the libraries that it calls."""
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            gc.collect()
            return list(gc.garbage)
        finally:
            gc.set_debug(0)
            gc.garbage.clear()

    exchange(port, sent, resets=resets)  # what is made once
    wait_for(lambda: REGISTRY.get_sample_value("gateway_connections") == 0)
    gc.collect()
    gc.disable()
    try:
        for _ in range(TIMES):
            exchange(port, sent, resets=resets)
        exchange(port, b"GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        left = Counter(type(thing).__name__ for thing in collected())
    finally:
        gc.enable()
    assert left.total() < TIMES, left
