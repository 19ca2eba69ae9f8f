"""Images by URL: addresses that must not be reached, and hosts that are slow, endless or wrong."""

import contextlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from bench.attack.target import Attacks, PromiseBroken, ServiceOptions, Target, repeated
from gateway_local.hosts import LOOPBACK

PORT = 18_397
"""The port of the hostile host, which the attacked service may use."""
HOST = f"http://{LOOPBACK}:{PORT}"
BIND_SECONDS = 60.0
OPTIONS = ServiceOptions(
    settings=(
        ("fetch_urls", f"{HOST}/,http://*"),
        ("fetch_networks", f"{LOOPBACK}/32"),
        ("fetch_timeout_seconds", 2),
    )
)
ATTACKS = Attacks()
OK = b"HTTP/1.1 200 OK\r\nContent-Type: image/jpeg\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
INSIDE = (
    *("169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "[::ffff:169.254.169.254]"),
    *("[64:ff9b::a9fe:a9fe]", "[fd00:ec2::254]", "168.63.129.16", "100.100.100.200", "10.0.0.1", "0", "[::1]"),
    *("[2002:7f00:1::]", "192.168.0.1", "[fe80::1]", "224.0.0.1"),
)
"""Addresses of metadata services and private networks, in every way to write them."""
ODD = (
    *("file:///etc/passwd", "gopher://127.0.0.1/", "http://a@b/", f"http://{LOOPBACK}:22/", f"{HOST}/../x"),
    *("http://\u24dbocalhost/", "http://localhost\u3002/", "http://a b/", "http://[::1", "http://" + "a" * 4_000),
    *("", "//x", "http://x/%0d%0aHost:%20y\r\n", f"http://{LOOPBACK}:{PORT}@169.254.169.254/", "s3://bucket/x"),
)
"""URLs that are invalid, or that two parsers read in two ways."""
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


def _post(target: Target, urls: Sequence[str]) -> str:
    return target.post("/predict", json.dumps({"images": [{"url": url} for url in urls]}).encode(), "application/json")


def _fetch(target: Target, send: Send, count: int = 20) -> str:
    """Let the service fetch images from a hostile host."""
    target.traffic.files += count
    with hostile_host(send):
        return _post(target, [f"{HOST}/{number}.jpg" for number in range(count)])


def _refused(target: Target, urls: Sequence[str]) -> str:
    answer = _post(target, urls)
    if answer != "422 url_not_allowed":
        msg = f"a URL that must not be fetched was: {answer}"
        raise PromiseBroken(msg)
    return answer


@ATTACKS.add(options=OPTIONS)
def redirects_to_metadata(target: Target) -> str:
    """Redirects to the metadata services of clouds, and to the service's own machine."""
    heads = itertools.cycle(
        f"HTTP/1.1 302 Found\r\nLocation: http://{host}/latest/meta-data/\r\nContent-Length: 0\r\n\r\n".encode()
        for host in INSIDE
    )
    with hostile_host(lambda connection: connection.sendall(next(heads))):
        return _refused(target, [f"{HOST}/{number}.jpg" for number in range(len(INSIDE))])


# fmt: off
ATTACKS.rows(
    ("addresses-inside", "URLs of metadata services and private networks, in every way to write an address",
     lambda target: _refused(target, [f"http://{host}/" for host in INSIDE])),
    ("urls-that-are-odd", "URLs that are invalid, or that two parsers read in two ways",
     lambda target: _refused(target, ODD)),
    ("urls-of-8-kb", "A thousand URLs of 8 kB, full of escapes",
     lambda target: _refused(target, ["https://a/" + "%25" * 2_700] * 1_000)),
    ("hosts-that-drip", "Twenty images from a host that sends ten bytes a second",
     lambda target: _fetch(target, _drip)),
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
    ("trailers-of-hosts-without-end", "Trailers without end",
     lambda target: _fetch(target, _endless(CHUNKED + b"0\r\n", b"a:b\r\n"))),
    ("redirects-without-end", "Hosts that redirect to themselves",
     lambda target: _fetch(target, _endless(b"HTTP/1.1 302 x\r\nLocation: /x\r\n\r\n", b"x"), count=100)),
    options=OPTIONS,
)
# fmt: on
