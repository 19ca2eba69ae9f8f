"""Clients that send unusual bytes, or that leave during their requests: memory afterwards."""

import contextlib
import gc
import socket
import struct
from collections import Counter
from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY

from tests.attack.websocket import handshake
from tests.doubles.backend import frame, frame_backend
from tests.processes import wait_for
from tests.services import stream_service

STREAM = handshake(query=b"?smoothing=none")
CLOSE = b"\x88\x80\0\0\0\0"
PICTURE = frame(200)
PARTS = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n' + PICTURE + b"\r\n--b--\r\n"


def post(media_type: str, body: bytes, length: int = 0) -> bytes:
    """A request of `POST /predict`; its body may announce more than it has."""
    head = f"Content-Type: {media_type}\r\nContent-Length: {length or len(body)}\r\n"
    return b"POST /predict HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + head.encode() + b"\r\n" + body


def exchange(port: int, sent: bytes, *, resets: bool = False) -> bytes:
    """The response, until the server closes the connection; a client that resets reads nothing."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(sent)
        if resets:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return received
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_WR)
            while data := client.recv(65_536):
                received += data
    return received


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with stream_service(frame_backend(), loop="uvloop") as (host, _):
        # What earlier tests have made would take a quarter of a second in each collection.
        gc.collect()
        gc.freeze()
        yield int(host.rpartition(":")[2])


SENT = {
    "not found": b"GET /x HTTP/1.1\r\n\r\n",
    "HEAD": b"HEAD /x HTTP/1.1\r\n\r\n",
    "bad frame": STREAM + b"\0\0",
    "refused handshake": STREAM.replace(b"smoothing=none", b"top_k=x"),
    "no HTTP": b"?\r\n\r\n",
    "handshake that is reset": STREAM,
    "bad handshake": STREAM.replace(b"==", b"") + 100 * b"x",
    "live": b"GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "half a request": b"GET /x HT",
    "upload": post("image/png", PICTURE),
    "no image": post("image/png", b"hello"),
    "upload that is cut": post("image/png", PICTURE, 50_000),
    "form": post("multipart/form-data; boundary=b", PARTS),
    "form without an end": post("multipart/form-data; boundary=b", PARTS[:-5]),
    "bad JSON": post("application/json", b"{"),
    "upgrade with a body": STREAM.replace(b": Upgrade\r\n", b": Upgrade, close\r\nContent-Length: 5\r\n"),
    "stream": STREAM + CLOSE,
    "frame": STREAM + b"\x82\x85\0\0\0\0hello" + CLOSE,
}
RESETS = {"half a request", "upload that is cut", "handshake that is reset"}
"""Their clients reset the connection."""


@pytest.mark.parametrize("name", SENT)
def test_connection_leaves_no_garbage(port: int, name: str):
    """Full collections block the event loop.

    400 clients that reset a stream's handshake left 80,000 objects that referred to each other: a pause of 380 ms.
    """
    times, sent, resets = 10, SENT[name], name in RESETS

    def collected() -> list[object]:
        """Objects that only the garbage collector finds, of the gateway and its libraries."""
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
        for _ in range(times):
            exchange(port, sent, resets=resets)
        exchange(port, SENT["live"])
        left = Counter(type(thing).__name__ for thing in collected())
    finally:
        gc.enable()
    assert left.total() < times, left
