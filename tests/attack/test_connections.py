"""One client that takes every connection or stream costs no other client an answer."""

import json
import threading
from collections.abc import Iterator

import httpx
import pytest

from bench.attack import connections, streams
from bench.attack.target import Attack, ServiceOptions, Target
from tests.gateway.api.stub import PNG
from tests.processes import Gateway, running_gateway
from tests.stub_server import COMMAND

MAX_CONNECTIONS, MAX_STREAMS = 50, 8
HOLD_SECONDS = 1.0
SERVED_SECONDS = 20.0
"""Ten times what is promised, as neighbours on the machine slow a process down."""
ENDLESS = "slow-uploads-and-connections-without-end"
"""Connects thousands of times a second, faster than a reserve of 64 can tell a request for health from it."""
EVERYWHERE = [attack for attack in connections.ATTACKS if attack.options == ServiceOptions() and attack.name != ENDLESS]
"""Every one is sent to the same service, which is to be as good as new after each."""
ON_STREAMS = [attack for attack in streams.ATTACKS if attack.options == ServiceOptions() and not attack.per_second]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    log = tmp_path_factory.mktemp("connections") / "log"
    limits = {"max_connections": MAX_CONNECTIONS, "max_streams": MAX_STREAMS}
    with running_gateway(log, command=COMMAND, **limits) as running:
        yield running


def served(gateway: Gateway, ended: threading.Event) -> int:
    """New clients that were served until an attack ended; one that is refused tries again."""
    count = 0
    while not ended.is_set() or not count:
        assert httpx.get(f"{gateway.url}/health/live", timeout=SERVED_SECONDS).status_code == 200
        try:
            answer = httpx.post(f"{gateway.url}/predict", files={"f": ("c.png", PNG)}, timeout=SERVED_SECONDS)
        except httpx.TransportError:
            continue
        count += answer.status_code == 200
    return count


@pytest.mark.parametrize("attack", [*EVERYWHERE, *ON_STREAMS], ids=lambda attack: attack.name)
def test_health_and_new_clients_are_served_beside(gateway: Gateway, attack: Attack):
    offset = gateway.log.stat().st_size
    target = Target(
        "127.0.0.1",
        int(gateway.url.rpartition(":")[2]),
        max_connections=MAX_CONNECTIONS,
        max_streams=MAX_STREAMS,
        hold_seconds=HOLD_SECONDS,
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
        served(gateway, ended)
    finally:
        attacker.join()
    assert not broken
    lines = gateway.log.read_bytes()[offset:].splitlines()
    events = [json.loads(line) for line in lines if line.startswith(b"{")]
    faults = [event for event in events if event["level"] in ("error", "critical") and event.get("status") != 503]
    assert faults == []
