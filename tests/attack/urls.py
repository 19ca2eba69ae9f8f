"""Images by URL: addresses that must not be reached, and hosts that are slow, endless or wrong."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from gateway_local.hosts import LOOPBACK
from tests.attack.target import Target, cases, repeated

PORT = 18_397
"""The port of the hostile host, which the attacked service may use."""
HOST = f"http://{LOOPBACK}:{PORT}"
BIND_SECONDS = 60.0
SETTINGS = {"fetch_urls": f"{HOST}/,http://*", "fetch_networks": f"{LOOPBACK}/32"}
OK = b"HTTP/1.1 200 OK\r\nContent-Type: image/jpeg\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
Send = Callable[[socket.socket], None]


@contextlib.contextmanager
def hostile_host(send: Send) -> Iterator[None]:
    """A host that answers each connection with `send`."""
    with _listener() as listener:
        threading.Thread(target=_accept, args=(listener, send), daemon=True).start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def _listener() -> socket.socket:
    deadline = time.monotonic() + BIND_SECONDS
    while True:
        try:
            return socket.create_server((LOOPBACK, PORT), backlog=200)
        except OSError:  # another attack uses it
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _accept(listener: socket.socket, send: Send) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_answer, args=(connection, send), daemon=True).start()


def _answer(connection: socket.socket, send: Send) -> None:
    with connection, contextlib.suppress(OSError):
        connection.settimeout(30)
        connection.recv(65_536)
        send(connection)


def _endless(head: bytes, unit: bytes) -> Send:
    """Sends a head, and then a unit without end."""

    def send(connection: socket.socket) -> None:
        connection.sendall(head)
        for piece in repeated(unit, 1 << 40):
            connection.sendall(piece)

    return send


def _drip(connection: socket.socket) -> None:
    connection.sendall(OK + b"Content-Length: 1000000\r\n\r\n")
    while True:
        connection.sendall(b"x")
        time.sleep(0.1)


def post_urls(target: Target, urls: Sequence[str]) -> str:
    """Send URLs of images."""
    return target.post("/predict", json.dumps({"images": [{"url": url} for url in urls]}).encode(), "application/json")


def _fetch(target: Target, send: Send, count: int = 20) -> str:
    """Let the service fetch images from a hostile host."""
    with hostile_host(send):
        return post_urls(target, [f"{HOST}/{number}.jpg" for number in range(count)])


# fmt: off
CASES = cases(
    ("urls-of-8-kb", "A thousand URLs of 8 kB, full of escapes",
     lambda target: post_urls(target, ["https://a/" + "%25" * 2_700] * 1_000)),
    ("hosts-that-drip", "Six images from a host that sends ten bytes a second",
     lambda target: _fetch(target, _drip, count=6)),
    ("bodies-without-end", "Eight images from a host that sends without end",
     lambda target: _fetch(target, _endless(OK + b"\r\n", b"x" * 65_536), count=8)),
    ("bombs-of-gzip", "Twenty compressed bodies, although none was asked for",
     lambda target: _fetch(target, _endless(OK + b"Content-Encoding: gzip\r\n\r\n", b"\0" * 65_536))),
    ("heads-without-end", "Headers without end",
     lambda target: _fetch(target, _endless(OK, b"a:b\r\n"))),
    ("interim-answers-without-end", "Interim responses (100 Continue) without end",
     lambda target: _fetch(target, _endless(b"", b"HTTP/1.1 100 x\r\n\r\n"))),
    ("bodies-in-tiny-chunks", "Bodies in chunks of one byte",
     lambda target: _fetch(target, _endless(CHUNKED, b"1\r\nx\r\n"))),
    ("trailers-of-hosts-without-end", "Trailers of a response without end",
     lambda target: _fetch(target, _endless(CHUNKED + b"0\r\n", b"a:b\r\n"))),
    ("redirects-without-end", "Hosts that redirect to themselves",
     lambda target: _fetch(target, _endless(b"HTTP/1.1 302 x\r\nLocation: /x\r\n\r\n", b"x"), count=100)),
)
# fmt: on
