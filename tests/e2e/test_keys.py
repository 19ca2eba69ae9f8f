"""Quotas of keys where users meet them: several workers, two gateways, a store that dies, a flood."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import StartGateway
from tests.keys import key_of
from tests.photos import photo
from tests.plugins.keys.stores import Store, needs_store
from tests.processes import SERVE, Gateway, wait_for

BURST = 20
# On a busy machine the store may take longer than a service waits for it.
PATIENT = f"from gateway_plugins.keys import rate_store; rate_store.TIMEOUT_SECONDS = 30.0; {SERVE}"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def flood(gateways: list[Gateway], key: dict[str, str], count: int, connections: int = 16) -> Counter[int]:
    """The statuses of `count` requests, spread over gateways and connections."""

    def send(number: int) -> list[int]:
        with gateways[number % len(gateways)].client(headers=key) as client:
            mine = range(number, count, connections)
            return [client.post("/predict", files={"files": photo("cat")}).status_code for _ in mine]

    with ThreadPoolExecutor(connections) as pool:
        return Counter(status for statuses in pool.map(send, range(connections)) for status in statuses)


def count_of(gateway: Gateway, event: str) -> int:
    return sum(each["event"] == event for each in gateway.events())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path)
    store.start()
    yield store
    store.kill()


@needs_store
def test_fleet_shares_rates_and_fails_no_request_without_its_store(
    start_gateway: StartGateway, light_triton, keys, store
):
    key = key_of(keys, "team", rate="1/h", burst=str(BURST))
    plain = key_of(keys, "plain")
    settings = {
        "triton_url": light_triton.url,
        "api_keys_file": keys,
        "rate_store_url": store.url,
        "program": PATIENT,
        "max_wait_seconds": 0.001,
    }
    with start_gateway(**settings) as first, start_gateway(**settings) as second:
        fleet = [first, second]
        assert flood(fleet, key, 2 * BURST) == {200: BURST, 429: BURST}

        store.kill()
        assert flood(fleet, plain, BURST) == {200: BURST}
        # Each applies the whole rate by itself.
        assert flood(fleet, key, 3 * BURST) == {200: 2 * BURST, 429: BURST}
        for gateway in fleet:
            assert gateway.metric("gateway_rate_store_up") == 0
            assert count_of(gateway, "rate_store_lost") == 1

        store.start()
        answers: list[int] = []

        def back() -> bool:
            for gateway in fleet:
                with gateway.client(headers=key) as client:
                    answers.append(client.post("/predict", files={"files": photo("cat")}).status_code)
            return all(gateway.metric("gateway_rate_store_up") == 1 for gateway in fleet)

        wait_for(back)
        assert set(answers) <= {200, 429}
        taken = answers.count(200)
        assert flood(fleet, key, 2 * BURST)[200] == BURST - taken  # the restarted store is empty
        for gateway in fleet:
            assert count_of(gateway, "rate_store_back") == 1
            assert gateway.faults() == []


@pytest.mark.parametrize("other_options", [{}, {"share": "1"}])
def test_flood_of_one_key_refuses_no_request_of_another(start_gateway: StartGateway, light_triton, keys, other_options):
    """The queue is shorter than the flood has connections, so some of its requests are refused."""
    key = key_of(keys, "app", **other_options)
    flooding = key_of(keys, "flood", share="0.5", priority="bulk")
    settings = {"triton_url": light_triton.url, "max_images_in_flight": 8, "max_images_waiting": 8}
    statuses: Counter[int] = Counter()
    done = threading.Event()

    def send() -> None:
        with gateway.client(headers=flooding) as client:
            while not done.is_set():
                statuses[client.post("/predict", files={"files": photo("cat")}).status_code] += 1

    with start_gateway(api_keys_file=keys, **settings) as gateway, ThreadPoolExecutor(24) as pool:
        clients = [pool.submit(send) for _ in range(24)]
        try:
            wait_for(lambda: statuses.total() > 48)
            answers = flood([gateway], key, 30, connections=1)
        finally:
            done.set()
        for each in clients:
            each.result()
        page = httpx.get(f"{gateway.url}/metrics").text
    assert answers == {200: 30}
    assert statuses[503] > 0
    assert set(statuses) == {200, 503}
    assert 'gateway_key_images_total{key="app",outcome="ok"} 30.0' in page
