"""Many connections that send the smallest pieces as fast as they can: another client's requests take about as long."""

import multiprocessing
import selectors
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
import pytest

from tests.attack.target import head
from tests.attack.websocket import BINARY, PING, handshake, message
from tests.doubles.backend import PNG
from tests.processes import Gateway

pytestmark = pytest.mark.slow

CONNECTIONS = 30
SECONDS = 0.5
"""How long another client is measured, without the attack and during it."""
MOST = 8.0
"""A generous bound of the ratio of both medians, which is below 2 on a quiet machine. If each connection had its own
time slice, the median would be more than 100 times as large."""
LEAST_SECONDS = 0.003
"""A quiet median below this counts as this: on a busy machine, a millisecond more is no delay."""
CHUNKED = head("POST /predict", "Content-Type: image/png", "Transfer-Encoding: chunked")
FLOODS = {
    "pings of no bytes": (handshake(), message(PING)),
    "messages of one byte": (handshake(), message(BINARY, b"x")),
    "headers that are refused": (b"GET /models HTTP/1.1\r\n", b"a:b\r\n"),
    "chunks of one byte": (CHUNKED, b"1\r\nx\r\n"),
}
"""The first bytes of a connection, and the bytes that it repeats."""


def flood(port: int, name: str, ended: object) -> None:
    """Keep connections full of the smallest pieces; each that is closed is opened again."""
    begin, unit = FLOODS[name]
    piece = unit * max(1, 65_536 // len(unit))
    with selectors.DefaultSelector() as selector:
        left: dict[socket.socket, bytes] = {}
        while not ended.is_set():  # type: ignore[attr-defined]
            while len(left) < CONNECTIONS:
                connection = socket.create_connection(("127.0.0.1", port))
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
                left[connection] = begin + piece
            for key, events in selector.select(0.1):
                connection = key.fileobj
                is_open = True
                try:
                    if events & selectors.EVENT_READ:
                        is_open = bool(connection.recv(65_536))
                    if events & selectors.EVENT_WRITE:
                        left[connection] = left[connection][connection.send(left[connection]) :] or piece
                except BlockingIOError:
                    pass
                except ConnectionError:
                    is_open = False
                if not is_open:
                    selector.unregister(connection)
                    del left[connection]
                    connection.close()
        for connection in left:
            connection.close()


@contextmanager
def flooded(port: int, name: str) -> Iterator[None]:
    """A separate process that floods the gateway."""
    context = multiprocessing.get_context("spawn")
    ended = context.Event()
    attacker = context.Process(target=flood, args=(port, name, ended))
    attacker.start()
    try:
        yield
    finally:
        ended.set()
        attacker.join(30)
        attacker.kill()


def median_seconds(client: httpx.Client) -> float:
    """How long a request with an image takes on a connection that is kept."""
    taken = []
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        began = time.perf_counter()
        with suppress(httpx.RemoteProtocolError):
            assert client.post("/predict", content=PNG, headers={"Content-Type": "image/png"}).status_code == 200
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


@pytest.mark.parametrize("name", FLOODS)
def test_small_pieces_delay_no_other_client(gateway: Gateway, name: str):
    """The other client has the address of the one that attacks: a new connection would wait for its refusals."""
    offset = gateway.log.stat().st_size
    with gateway.client(limits=httpx.Limits(keepalive_expiry=None)) as client:
        quiet = max(median_seconds(client), LEAST_SECONDS)
        before = gateway.metric("gateway_connections")
        with flooded(gateway.port, name):
            deadline = time.monotonic() + 30
            while gateway.metric("gateway_connections") < before + CONNECTIONS / 2:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert median_seconds(client) < MOST * quiet
    assert not gateway.faults(offset)
