"""A client that sends text messages as fast as the socket takes them, to a gateway in a process of its own."""

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.doubles.program import PROGRAM
from tests.fuzz.streams import TEXT, handshake, message
from tests.processes import Gateway, running_gateway, wait_for

SECONDS, MOST_GROWN_BYTES, SLOWEST_SECONDS = 2.0, 60_000_000, 1.0
FLOOD = message(TEXT, b'{"top_k": 1}') * 5_000


@pytest.fixture(scope="module")
def gateway(tmp_path_factory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("flood") / "log", program=PROGRAM) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def bytes_before(gateway) -> int:
    """The memory of the gateway once its decoders' processes have started."""
    sizes = [0]

    def is_steady() -> bool:
        time.sleep(0.5)
        sizes.append(gateway.resident_bytes())
        return sizes[-1] - sizes[-2] < 1_000_000

    wait_for(is_steady)
    return sizes[-1]


@pytest.mark.parametrize("reads", [True, False], ids=["reads", "does not read"])
def test_text_flood_costs_its_client_alone(gateway, bytes_before, reads):
    """What a stream holds stays bounded, and another client is answered at once."""
    port = int(gateway.url.rpartition(":")[2])
    ends = time.monotonic() + SECONDS
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection, gateway.client() as client:
        connection.sendall(handshake(random.Random(0), wrong=0, query=b"?smoothing=none"))
        assert connection.recv(4_096).startswith(b"HTTP/1.1 101")
        connection.settimeout(0.2)
        threads = [threading.Thread(target=_send, args=(connection, ends))]
        if reads:
            threads.append(threading.Thread(target=_receive, args=(connection, ends)))
        for thread in threads:
            thread.start()
        slowest = 0.0
        while time.monotonic() < ends:
            began = time.monotonic()
            assert client.get("/health/live").status_code == 200
            slowest = max(slowest, time.monotonic() - began)
        for thread in threads:
            thread.join()
        grown = gateway.resident_bytes() - bytes_before
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert httpx.get(f"{gateway.url}/health/live", timeout=10).status_code == 200
    assert grown < MOST_GROWN_BYTES
    assert slowest < SLOWEST_SECONDS


def _send(connection: socket.socket, ends: float) -> None:
    """Send whole messages, one after the other, though the socket takes parts of them."""
    place = 0
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < ends:
            with contextlib.suppress(TimeoutError):
                place = (place + connection.send(FLOOD[place:])) % len(FLOOD)


def _receive(connection: socket.socket, ends: float) -> None:
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < ends:
            with contextlib.suppress(TimeoutError):
                connection.recv(65_536)
