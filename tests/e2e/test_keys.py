"""A flood of one API key beside another key's requests, through the whole service."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.e2e.conftest import StartGateway
from tests.keys import key_of
from tests.photos import photo
from tests.processes import wait_for

CLIENTS = 24


def test_flood_of_one_key_refuses_no_request_of_another(start_gateway: StartGateway, light_triton, tmp_path):
    """The queue is shorter than the flood has connections, so some of its requests are refused."""
    keys = tmp_path / "keys"
    key = key_of(keys, "app")
    flooding = key_of(keys, "flood", share="0.5", priority="bulk")
    settings = {"triton_url": light_triton.url, "max_images_in_flight": 8, "max_images_waiting": 8}
    statuses: Counter[int] = Counter()
    done = threading.Event()

    def classify(client: httpx.Client) -> int:
        return client.post("/predict", files={"files": photo("cat")}).status_code

    def flood() -> None:
        with gateway.client(headers=flooding) as client:
            while not done.is_set():
                statuses[classify(client)] += 1

    with start_gateway(api_keys_file=keys, **settings) as gateway, ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(flood) for _ in range(CLIENTS)]
        try:
            wait_for(lambda: statuses.total() > 2 * CLIENTS)
            with gateway.client(headers=key) as client:
                assert [classify(client) for _ in range(30)] == [200] * 30
        finally:
            done.set()
        for each in clients:
            each.result()
        page = httpx.get(f"{gateway.url}/metrics").text
    assert statuses[503] > 0
    assert set(statuses) == {200, 503}
    assert 'gateway_key_images_total{key="app",outcome="ok"} 30.0' in page
