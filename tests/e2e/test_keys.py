"""A flood of one API key beside another key's requests, through the whole service."""

import httpx

from tests.e2e.conftest import StartGateway
from tests.keys import key_of
from tests.load import Load
from tests.photos import photo
from tests.processes import wait_for

CLIENTS = 24


def test_flood_of_one_key_refuses_no_request_of_another(start_gateway: StartGateway, light_triton, tmp_path):
    """The queue is shorter than the flood has connections, so some of its requests are refused."""
    keys = tmp_path / "keys"
    key = key_of(keys, "app")
    flooding = key_of(keys, "flood", share="0.5", priority="bulk")
    settings = {"triton_url": light_triton.url, "max_images_in_flight": 8, "max_images_waiting": 8}
    with (
        start_gateway(api_keys_file=keys, **settings) as gateway,
        Load(gateway.url, CLIENTS, pause_seconds=0, headers=flooding) as flood,
        gateway.client(headers=key) as client,
    ):
        wait_for(lambda: flood.outcomes().total() > 2 * CLIENTS)
        statuses = [client.post("/predict", files={"files": photo("cat")}).status_code for _ in range(30)]
        page = httpx.get(f"{gateway.url}/metrics", timeout=60).text
    assert statuses == [200] * 30
    assert set(flood.outcomes()) == {200, 503}
    assert 'gateway_key_images_total{key="app",outcome="ok"} 30.0' in page
