"""A fleet of two gateways, two Tritons and a Redis: keys flood it and a part is lost, while another key works."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
import redis

from gateway.plugins.keys.key_file import add_key
from gateway.plugins.keys.quota import read_quota
from gateway.plugins.keys.rates import CONNECTIONS
from gateway_local.server import EmbeddedTriton
from tests.gateway.plugins.keys.stores import Store, needs_store
from tests.load import Load
from tests.processes import SERVE, Gateway, free_port, is_gone, running_gateway, wait_for
from tests.reliability.conftest import urls_of

pytestmark = [pytest.mark.triton, pytest.mark.long, needs_store]

PER_SECOND = 5
FLOOD_CLIENTS = 8
"""Clients of the key `fast` at each gateway."""
IN_FLIGHT = 8
SHARE = 0.25
LIMITS = {"max_images_in_flight": IN_FLIGHT, "max_images_waiting": 6, "ready_interval_seconds": 1}
PATIENT = f"from gateway.plugins.keys import rates; rates.TIMEOUT_SECONDS = 30.0; {SERVE}"
"""On a busy machine the store may take longer than a service waits for it, and then the rates are not exact."""
GAUGES = (
    "gateway_images_in_flight",
    "gateway_images_waiting",
    "gateway_in_flight_bytes",
    "gateway_waiting_bytes",
    "gateway_answer_bytes",
    *(f'gateway_key_images_in_flight{{key="{name}"}}' for name in ("app", "fast", "greedy")),
)
"""What an idle gateway has none of."""


class Member:
    """A gateway of the fleet: it can be killed, and started again on its port."""

    def __init__(self, folder: Path, settings: dict[str, object]) -> None:
        self._folder, self._settings = folder, settings
        self._port, self._starts = free_port(), 0
        self._running = ExitStack()
        self.killed_at = self.back_at = 0.0
        self.start()

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        self._starts += 1
        log = self._folder / f"{self._port}-{self._starts}.log"
        self.gateway = self._running.enter_context(running_gateway(log, port=self._port, **self._settings))
        self.back_at = time.monotonic()

    def kill(self) -> None:
        """Kill it; its children end as well."""
        children = psutil.Process(self.gateway.process.pid).children(recursive=True)
        self.killed_at = time.monotonic()
        self.gateway.process.kill()
        self.gateway.process.wait(60)
        self.stop()
        wait_for(lambda: all(map(is_gone, children)))

    def stop(self) -> None:
        """Stop it, if it runs."""
        self._running.close()


class Fleet:
    """The parts, and the load of three keys: `app` works, `fast` and `greedy` flood."""

    def __init__(self, folder: Path, tritons: list[EmbeddedTriton], store: Store, program: str) -> None:
        keys = folder / "keys"
        options = {
            "app": {},
            "fast": {"rate": f"{PER_SECOND}/s"},
            "greedy": {"share": str(SHARE), "priority": "bulk"},
        }
        self._keys = {name: add_key(keys, name, read_quota(quota)) for name, quota in options.items()}
        self.tritons, self.store = tritons, store
        settings = {
            "triton_url": urls_of(tritons),
            "api_keys_file": keys,
            "rate_store_url": store.url,
            "program": program,
        }
        self.members = [Member(folder, settings | LIMITS) for _ in range(2)]
        self.loads: dict[str, list[Load]] = {}

    @property
    def gateways(self) -> list[Gateway]:
        """The gateways as they run now."""
        return [member.gateway for member in self.members]

    @contextmanager
    def loaded(self) -> Iterator[None]:
        """All keys send to all gateways, each over connections of its own, until the end of the block."""
        with ExitStack() as stack:
            for name, clients, pause_seconds in (("greedy", 12, 0.0), ("fast", FLOOD_CLIENTS, 0.0), ("app", 3, 0.03)):
                headers = {"X-API-Key": self._keys[name]}
                self.loads[name] = [
                    stack.enter_context(Load(gateway.url, clients, headers=headers, pause_seconds=pause_seconds))
                    for gateway in self.gateways
                ]
            self.wait_served()
            yield
            self.wait_served()

    def wait_served(self) -> None:
        """Wait until `app` has had 20 more answers of each gateway, and `fast` as many as its rate has in 2 s."""
        now = time.monotonic()
        wait_for(lambda: all(load.outcomes(since=now)[200] >= 20 for load in self.loads["app"]))
        wait_for(lambda: self.outcomes("fast", since=now)[200] >= 2 * PER_SECOND)

    def outcomes(self, name: str, since: float = 0.0) -> Counter[int | str]:
        """The results of a key's requests."""
        return sum((load.outcomes(since) for load in self.loads[name]), Counter[int | str]())

    def wait_metric(self, name: str, value: float) -> None:
        """Wait until all gateways have this value of a metric."""
        wait_for(lambda: all(gateway.metric(name) == value for gateway in self.gateways))

    def seconds(self, name: str) -> float:
        """From a key's first request to its last answer."""
        answers = [answer for load in self.loads[name] for answer in load.answers]
        return max(answered for _, answered, _ in answers) - min(sent for sent, _, _ in answers)

    def check(self, *, starts: int = 1, alone_seconds: float = 0.0) -> None:
        """Check what the service promises, at the end of the load.

        The store began `starts` times with nothing taken; each gateway counted for itself for `alone_seconds`. Each
        counter admits its rate, and that of a second once.
        """
        for member, load in zip(self.members, self.loads["app"], strict=True):
            for sent_at, answered_at, outcome in load.answers:
                lost = member.killed_at and answered_at > member.killed_at and sent_at < member.back_at
                assert outcome == 200 or lost, (
                    f"{outcome}, answered {answered_at - member.killed_at:.2f} s after the kill"
                )
        once = PER_SECOND + 1
        most = once * starts + PER_SECOND * self.seconds("fast")
        if alone_seconds:
            most += len(self.members) * (starts * once + PER_SECOND * alone_seconds)
        assert self.outcomes("fast")[200] <= most
        for index, (member, gateway) in enumerate(zip(self.members, self.gateways, strict=True)):
            for name in GAUGES:
                wait_for(lambda gateway=gateway, name=name: gateway.metric(name) == 0)
            wait_for(lambda gateway=gateway: gateway.metric("gateway_connections") == 1)  # that of the question
            assert [event for event in gateway.faults() if event.get("status") != 503] == []
            if not member.killed_at:
                sent = {name: self.loads[name][index].outcomes() for name in self.loads}
                assert set(sent["fast"]) <= {200, 429}
                assert set(sent["greedy"]) <= {200, 503}
                for name in sent:
                    metric = f'gateway_key_images_total{{key="{name}",outcome="ok"}}'
                    assert gateway.metric(metric) == sent[name][200]
                refused = gateway.metric('gateway_key_refusals_total{key="fast",reason="rate"}')
                assert refused == sent["fast"][429] > 0
        with redis.Redis.from_url(self.store.url) as client:
            assert client.info("clients")["connected_clients"] <= CONNECTIONS * len(self.members) + 1


@pytest.fixture
def fleet(request, tmp_path, two_tritons) -> Iterator[Fleet]:
    """A fleet whose gateways are as patient with the store as a busy machine needs, unless a test says otherwise."""
    store = Store(tmp_path)
    store.start()
    fleet = Fleet(tmp_path, two_tritons, store, getattr(request, "param", PATIENT))
    try:
        yield fleet
    finally:
        store.kill()
        for member in fleet.members:
            member.stop()


def test_flooding_keys_have_their_rate_and_their_share(fleet):
    seen: list[float] = []

    def saw_many() -> bool:
        seen.extend(gateway.metric('gateway_key_images_in_flight{key="greedy"}') for gateway in fleet.gateways)
        return len(seen) >= 30 and max(seen) > 0

    with fleet.loaded():
        wait_for(saw_many)
    assert max(seen) <= SHARE * IN_FLIGHT
    fleet.check()


@pytest.mark.parametrize("fleet", [pytest.param(SERVE, id="")], indirect=True)
def test_store_that_hangs_fails_no_request(fleet):
    """A machine that is busy may make it seem to hang before it does, so the bound is that of the whole time."""
    with fleet.loaded():
        fleet.store.hang()
        try:
            fleet.wait_metric("gateway_rate_store_up", 0)
            fleet.wait_served()
        finally:
            fleet.store.go_on()
        fleet.wait_metric("gateway_rate_store_up", 1)
    fleet.check(alone_seconds=fleet.seconds("fast"))


def test_all_at_once_fails_only_requests_of_the_killed_gateway(fleet):
    """A Triton, a gateway and the store, and they come back in turn."""
    lost = fleet.tritons[1]
    with fleet.loaded():
        killed_at = time.monotonic()
        fleet.store.kill()
        os.kill(lost.pid, signal.SIGKILL)
        fleet.members[1].kill()
        wait_for(lambda: fleet.loads["app"][0].outcomes(since=killed_at)[200] >= 20)
        lost.stop(grace_seconds=0)
        fleet.members[1].start()
        fleet.wait_served()
        lost.start()
        fleet.store.start()
        fleet.wait_metric("gateway_rate_store_up", 1)
        alone_seconds = time.monotonic() - killed_at
        for triton in fleet.tritons:
            fleet.wait_metric(f'gateway_triton_ready{{triton="{triton.url}"}}', 1)
    events = [each["event"] for each in fleet.gateways[0].events() if each["event"].startswith("rate_store")]
    assert events == ["rate_store_lost", "rate_store_back"]
    assert fleet.outcomes("app").keys() > {200}  # some were lost: the kill was seen
    fleet.check(starts=2, alone_seconds=alone_seconds)
