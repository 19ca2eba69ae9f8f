"""Rates in a Redis or Valkey: shared by all that use it, and by none while it is away."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from gateway.plugins.keys import metrics, rates
from gateway.plugins.keys.quota import Period, Rate, Window
from gateway.plugins.keys.rates import CONNECTIONS, KEPT_SECONDS, RETRY_SECONDS, Rates
from tests.doubles.backend import PNG
from tests.gateway.plugins.keys.stores import Store, needs_store
from tests.keys import key_of
from tests.services import client_of

pytestmark = needs_store
SLOW = Rate(10, "h")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A running store; on a busy machine it may take longer than a service waits for it."""
    monkeypatch.setattr(rates, "TIMEOUT_SECONDS", 30.0)
    store = Store(tmp_path)
    store.start()
    yield store
    store.kill()


@pytest.fixture
async def stored(store, clock) -> AsyncIterator[Rates]:
    metrics.RATE_STORE_UP.set(1)  # as in a new process; an earlier test may have lost its store
    stored = Rates(store.url, clock)
    yield stored
    await stored.close()


async def taken(stored: Rates, count: int = 20) -> int:
    return sum([(await stored.take("a", SLOW)).admitted for _ in range(count)])


@pytest.mark.parametrize("quota", [{"rate": "3/h"}, {"per-day": "3"}], ids=str)
def test_applications_share_the_images_of_a_key(store, path, quota):
    """Another key has other images."""
    key, other = (key_of(path, name, **quota) for name in ("app", "other"))
    settings = {"api_keys_file": path, "rate_store_url": store.url, "max_wait_seconds": 0.001}
    statuses = []
    for keys in ((key, key), (key, key, other)):
        with client_of(**settings) as client:
            statuses += [client.post("/predict", files={"f": PNG}, headers=each).status_code for each in keys]
    assert statuses == [200, 200, 200, 429, 200]


async def test_images_at_once_are_counted_exactly(stored):
    """The store counts in one step, and a refused image takes nothing."""
    grants = await asyncio.gather(*(stored.take("a", SLOW) for _ in range(4 * CONNECTIONS)))
    assert sum(grant.admitted for grant in grants) == SLOW.images
    refused = await stored.take("a", SLOW)
    assert 3_590 < refused.next_seconds <= 3_600
    quick = [await stored.take("b", Rate(2, "s")) for _ in range(3)]
    assert [(grant.admitted, grant.remaining) for grant in quick] == [(True, 1), (True, 0), (False, 0)]
    await asyncio.sleep(quick[-1].next_seconds + 0.01)
    assert (await stored.take("b", Rate(2, "s"))).admitted


async def test_rates_are_local_while_the_store_is_away(stored, store, clock):
    assert await taken(stored) == SLOW.images
    with capture_logs() as events:
        store.kill()
        assert await taken(stored) == SLOW.images
        clock.seconds += RETRY_SECONDS
        assert await taken(stored) == 0
        assert REGISTRY.get_sample_value("gateway_rate_store_up") == 0
        store.start()
        assert await taken(stored) == 0  # not asked before the time is over
        clock.seconds += RETRY_SECONDS
        assert await taken(stored) == SLOW.images  # it has lost its state
        assert REGISTRY.get_sample_value("gateway_rate_store_up") == 1
    assert [event["event"] for event in events] == ["rate_store_lost", "rate_store_back"]


async def test_restarted_store_is_used_at_once_over_old_connections(stored, store):
    """The pool has connections that the store has closed."""
    await asyncio.gather(*(stored.take("a", SLOW) for _ in range(2 * CONNECTIONS)))
    store.kill()
    store.start()
    with capture_logs() as events:
        grants = await asyncio.gather(*(stored.take("a", SLOW) for _ in range(2 * CONNECTIONS)))
    assert sum(grant.admitted for grant in grants) == SLOW.images
    assert events == []


async def test_store_that_hangs_delays_one_image_and_not_the_loop(stored, store, clock, monkeypatch):
    assert await taken(stored, 1) == 1
    store.hang()
    monkeypatch.setattr(rates, "TIMEOUT_SECONDS", 0.25)
    try:
        began = asyncio.get_running_loop().time()
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        task = asyncio.ensure_future(tick())
        assert await taken(stored) == SLOW.images
        assert 0.2 < asyncio.get_running_loop().time() - began < 10
        task.cancel()
        assert ticks > 5
    finally:
        store.go_on()
    monkeypatch.setattr(rates, "TIMEOUT_SECONDS", 30.0)
    clock.seconds += RETRY_SECONDS
    assert await taken(stored, 3) == 3  # in the store again, which has given one


@pytest.mark.parametrize(("password", "logged"), [("wrong", ["rate_store_lost"]), ("right", [])])
async def test_store_that_refuses_the_password_is_away(store, password, logged):
    """The log does not show the password."""
    store.kill()
    store.start("--requirepass", "right")
    url = store.url.replace("//", f"//:{password}@")
    stored = Rates(url)
    with capture_logs() as events:
        assert await taken(stored) == SLOW.images
    await stored.close()
    assert [event["event"] for event in events] == logged
    assert password not in str(events)


async def test_state_in_the_store_expires_and_another_format_counts_as_a_failed_store(stored, store):
    await stored.take("a", SLOW)
    with redis.Redis.from_url(store.url) as client:
        (key,) = client.keys("*")
        assert 0 < client.ttl(key) <= 2 * SLOW.seconds
        day = Window.now(Period.DAY)
        assert await stored.count("a", Period.DAY, day) == 1
        (other,) = set(client.keys("*")) - {key}
        assert day.left_seconds < client.ttl(other) <= day.left_seconds + 2 * KEPT_SECONDS
        client.set(key, "text")
    assert (await stored.take("a", SLOW)).admitted
    assert REGISTRY.get_sample_value("gateway_rate_store_up") == 0
