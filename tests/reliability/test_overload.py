"""Overload is fair to small requests."""

import threading
import time

import httpx
import pytest

from tests.photos import photo, unlike_any
from tests.processes import wait_for

pytestmark = [pytest.mark.triton, pytest.mark.slow]


def test_single_image_does_not_wait_behind_a_thousand(light_triton, start_gateway):
    with start_gateway(triton_url=light_triton.url) as gateway, gateway.client() as http:
        alone = median_seconds(http)
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


def median_seconds(http: httpx.Client) -> float:
    return sorted(seconds_of_one(http) for _ in range(9))[4]
