"""Overload is fair to small requests, and to the keys that did not cause it."""

import threading
import time

import httpx
import pytest

from tests.keys import key_of
from tests.load import Load
from tests.photos import photo, unlike_any
from tests.processes import wait_for

pytestmark = [pytest.mark.triton, pytest.mark.slow]

CLIENTS = 24


def test_single_image_does_not_wait_behind_a_thousand(light_triton, start_gateway):
    with start_gateway(triton_url=light_triton.url) as gateway, gateway.client() as http:
        alone = sorted(seconds_of_one(http) for _ in range(9))[4]
        bulk_seconds: list[float] = []

        def bulk() -> None:
            files = [("f", (f"{index}.jpg", unlike_any(photo("cat")))) for index in range(1_000)]
            started = time.monotonic()
            with gateway.client() as other:
                assert other.post("/predict", files=files, timeout=300).json()["summary"]["ok"] == 1_000
            bulk_seconds.append(time.monotonic() - started)

        thread = threading.Thread(target=bulk)
        thread.start()
        beside: list[float] = []
        wait_for(lambda: gateway.metric("gateway_images_in_flight") > 0)
        while thread.is_alive():
            beside.append(seconds_of_one(http))
        thread.join()
        beside = beside[:-1]
        assert len(beside) > 3
        # Ahead of it are the images that the bulk request has in flight, some thirty, and not its thousand.
        assert sorted(beside)[len(beside) // 2] < max(bulk_seconds[0] / 5, 5 * alone)


def seconds_of_one(http: httpx.Client) -> float:
    started = time.monotonic()
    assert http.post("/predict", files={"f": ("c.jpg", unlike_any(photo("cat")))}).status_code == 200
    return time.monotonic() - started


def test_flood_of_one_key_refuses_no_request_of_another(light_triton, start_gateway, tmp_path):
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
        counted = gateway.metric('gateway_key_images_total{key="app",outcome="ok"}')
    assert statuses == [200] * 30
    assert set(flood.outcomes()) == {200, 503}
    assert counted == 30
