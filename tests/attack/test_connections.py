"""While a client takes every connection or stream, health checks and new clients are served."""

import threading

import httpx
import pytest

from tests.attack import connections, streams
from tests.attack.target import Case, Target
from tests.doubles.backend import PNG
from tests.processes import Gateway

pytestmark = pytest.mark.slow

MAX_CONNECTIONS, MAX_STREAMS = 50, 8
SETTINGS = {"max_connections": MAX_CONNECTIONS, "max_streams": MAX_STREAMS}
HOLD_SECONDS = 0.3
NBYTES = 400_000
CLIENTS = 120
"""A few more than MAX_CONNECTIONS for each kind of request."""
PAUSE_SECONDS = 0.02
SERVED_SECONDS = 60.0
"""Thirty times the promised time, since other processes may slow the service down."""
MOST_FAILED, MOST_FAILED_SHARE = 2, 0.05
"""Health requests that may fail during an attack: this many, or this share of them if that is more. On a busy machine
the reserve of 64 can be full of newcomers before a client that has connected sends its request."""
ENDLESS = "slow-uploads-and-connections-without-end"
"""Connects thousands of times a second: the reserve of 64 is full before a health request in it has been read."""
EVERYWHERE = [attack for attack in connections.CASES if attack.name != ENDLESS]
"""One service gets them in turn, so each attack also tests that the one before it left nothing behind."""


def serve_others(gateway: Gateway, ended: threading.Event) -> None:
    """Classify images on new connections until the attack has ended and one succeeded, and ask for the health.

    A refused client tries again; at most MOST_FAILED health requests may fail.
    """
    count, live = 0, []
    with httpx.Client(
        base_url=gateway.url, timeout=SERVED_SECONDS, limits=httpx.Limits(max_keepalive_connections=0)
    ) as http:
        while not ended.wait(PAUSE_SECONDS) or not count:
            live.append(is_live(http))
            try:
                response = http.post("/predict", files={"f": ("c.png", PNG)})
            except httpx.TransportError:
                continue
            count += response.status_code == 200
    failed = live.count(False)
    assert failed <= max(MOST_FAILED, MOST_FAILED_SHARE * len(live)), f"{failed} of {len(live)} health requests failed"


def is_live(http: httpx.Client) -> bool:
    """Whether a health request on a new connection succeeds; False if the connection is closed without an answer."""
    try:
        return http.get("/health/live").status_code == 200
    except (httpx.RemoteProtocolError, httpx.NetworkError):
        return False


@pytest.mark.parametrize("attack", [*EVERYWHERE, *streams.CASES], ids=lambda attack: attack.name)
def test_health_and_new_clients_are_served_during_an_attack(gateway: Gateway, attack: Case):
    offset = gateway.log.stat().st_size
    target = Target(
        "127.0.0.1",
        gateway.port,
        nbytes=NBYTES,
        max_connections=MAX_CONNECTIONS,
        max_streams=MAX_STREAMS,
        hold_seconds=HOLD_SECONDS,
        clients=CLIENTS,
    )
    ended = threading.Event()
    broken: list[Exception] = []

    def send() -> None:
        try:
            attack.send(target)
        except Exception as exc:
            broken.append(exc)
        finally:
            ended.set()

    attacker = threading.Thread(target=send)
    attacker.start()
    try:
        serve_others(gateway, ended)
    finally:
        attacker.join()
    assert not broken
    assert [event for event in gateway.faults(offset) if event.get("status") != 503] == []
