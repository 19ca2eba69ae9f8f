"""Rates in a Redis or Valkey: shared by all that use it, and by none while it is away or answers nonsense.

`gateway doctor` checks it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from gateway.findings import Finding, Level
from gateway_plugins.keys import doctor, metrics, rate_store
from gateway_plugins.keys.quota import Rate
from gateway_plugins.keys.rate_store import CONNECTIONS, RETRY_SECONDS, StoredRates
from gateway_plugins.keys.rates import ProcessRates, take
from tests.doubles.backend import PNG
from tests.keys import key_of
from tests.plugins.keys.stores import Store, needs_store
from tests.services import client_of
from tests.settings import Settings

pytestmark = needs_store
SLOW = Rate(0.001, 10, "")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A running store; on a busy machine it may take longer than a service waits for it."""
    monkeypatch.setattr(rate_store, "TIMEOUT_SECONDS", 30.0)
    store = Store(tmp_path)
    store.start()
    yield store
    store.kill()


@pytest.fixture
async def rates(store, clock) -> AsyncIterator[StoredRates]:
    metrics.RATE_STORE_UP.set(1)  # as in a new process; an earlier test may have lost its store
    rates = StoredRates(store.url, ProcessRates(), clock)
    yield rates
    await rates.close()


async def taken(rates: StoredRates, count: int = 20) -> int:
    return sum([(await rates.take("a", SLOW, 0.0)).admitted for _ in range(count)])


def test_applications_share_the_rate_of_a_key(store, path):
    """Another key has a rate of its own."""
    key, other = (key_of(path, name, rate="1/h", burst="3") for name in ("app", "other"))
    settings = {"api_keys_file": path, "rate_store_url": store.url, "max_wait_seconds": 0.001}
    statuses = []
    for keys in ((key, key), (key, key, other)):
        with client_of(**settings) as client:
            statuses += [client.post("/predict", files={"f": PNG}, headers=each).status_code for each in keys]
    assert statuses == [200, 200, 200, 429, 200]


@pytest.mark.parametrize("rate", [Rate(0.5, 3, ""), Rate(0.001, 1, ""), Rate(2.0, 10, "")])
@pytest.mark.parametrize("most_seconds", [0.0, 3.0])
async def test_store_computes_what_the_process_does(rates, rate, most_seconds):
    state = 0.0
    for _ in range(15):
        grant = await rates.take("a", rate, most_seconds)
        state, expected = take(state, rate, 0.0, most_seconds)
        assert (grant.admitted, grant.remaining) == (expected.admitted, expected.remaining)
        # The store's clock goes on between two requests.
        assert expected.wait_seconds - 5 < grant.wait_seconds <= expected.wait_seconds + 1e-3
        assert expected.next_seconds - 5 < grant.next_seconds <= expected.next_seconds + 1e-3


async def test_rates_are_local_while_the_store_is_away(rates, store, clock):
    assert await taken(rates) == SLOW.burst
    with capture_logs() as events:
        store.kill()
        assert await taken(rates) == SLOW.burst
        clock.seconds += RETRY_SECONDS
        assert await taken(rates) == 0
        assert REGISTRY.get_sample_value("gateway_rate_store_up") == 0
        store.start()
        assert await taken(rates) == 0  # not asked before the time is over
        clock.seconds += RETRY_SECONDS
        assert await taken(rates) == SLOW.burst  # it has lost its state
        assert REGISTRY.get_sample_value("gateway_rate_store_up") == 1
    assert [event["event"] for event in events] == ["rate_store_lost", "rate_store_back"]


async def test_restarted_store_is_used_at_once_over_old_connections(rates, store):
    """The pool has connections that the store has closed."""
    await asyncio.gather(*(rates.take("a", SLOW, 0.0) for _ in range(2 * CONNECTIONS)))
    store.kill()
    store.start()
    with capture_logs() as events:
        grants = await asyncio.gather(*(rates.take("a", SLOW, 0.0) for _ in range(2 * CONNECTIONS)))
    assert sum(grant.admitted for grant in grants) == SLOW.burst
    assert events == []


async def test_store_that_hangs_delays_one_image_and_not_the_loop(rates, store, clock, monkeypatch):
    assert await taken(rates, 1) == 1
    failures = REGISTRY.get_sample_value("gateway_rate_store_failures_total")
    store.hang()
    monkeypatch.setattr(rate_store, "TIMEOUT_SECONDS", 0.25)
    try:
        began = asyncio.get_running_loop().time()
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        task = asyncio.ensure_future(tick())
        assert await taken(rates) == SLOW.burst
        assert 0.2 < asyncio.get_running_loop().time() - began < 10
        task.cancel()
        assert ticks > 5
        assert REGISTRY.get_sample_value("gateway_rate_store_failures_total") == failures + 1
    finally:
        store.go_on()
    monkeypatch.setattr(rate_store, "TIMEOUT_SECONDS", 30.0)
    clock.seconds += RETRY_SECONDS
    assert await taken(rates, 3) == 3  # in the store again, which has given one


async def test_cancelled_request_leaves_the_store_usable(rates):
    for _ in range(50):
        work = asyncio.ensure_future(rates.take("a", SLOW, 0.0))
        await asyncio.sleep(0)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    await rates.take("b", SLOW, 0.0)
    assert REGISTRY.get_sample_value("gateway_rate_store_up") == 1


@pytest.mark.parametrize(
    ("password", "logged", "level"), [("wrong", ["rate_store_lost"], Level.WARN), ("right", [], Level.OK)]
)
async def test_store_that_refuses_the_password_is_away(store, password, logged, level):
    """Neither the log nor `gateway doctor` shows the password."""
    store.kill()
    store.start("--requirepass", "right")
    url = store.url.replace("//", f"//:{password}@")
    rates = StoredRates(url, ProcessRates())
    with capture_logs() as events:
        assert await taken(rates) == SLOW.burst
    await rates.close()
    assert [event["event"] for event in events] == logged
    (finding,) = await found(url)
    assert finding.level is level
    assert password not in f"{events}{finding}"


async def test_invalid_replies_count_as_a_failed_store(store, clock, monkeypatch):
    """Another script returns what the store's own script never returns."""
    for reply in (
        *("redis.status_reply('OK')", "1", "false", "{}", "{1, 0, false}", "{'1', '0', '0'}", "{2, '0', '0'}"),
        *(f"{{1, '{wait}', '0'}}" for wait in ("soon", "-1", "nan", "31", "1e300")),
        *(f"{{0, '{wait}', '0'}}" for wait in ("nan", "inf", "1e300")),
        *(f"{{1, '0', '{ahead}'}}" for ahead in ("inf", "nan", "-1")),
    ):
        failures = REGISTRY.get_sample_value("gateway_rate_store_failures_total")
        monkeypatch.setattr(rate_store, "_TAKE", f"return {reply}")
        rates = StoredRates(store.url, ProcessRates(), clock)
        with capture_logs() as events:
            grants = [await rates.take("a", Rate(0.001, 1, ""), 30.0) for _ in range(2)]
        await rates.close()
        assert [(grant.admitted, grant.wait_seconds > 30) for grant in grants] == [(True, False), (False, True)], reply
        assert [event["event"] for event in events] == ["rate_store_lost"], reply
        assert REGISTRY.get_sample_value("gateway_rate_store_failures_total") == failures + 1, reply


async def test_valid_reply_at_the_longest_wait_is_used(store, monkeypatch):
    monkeypatch.setattr(rate_store, "_TAKE", "return {1, '30', '0'}")
    rates = StoredRates(store.url, ProcessRates())
    grant = await rates.take("a", SLOW, 30.0)
    await rates.close()
    assert (grant.admitted, grant.wait_seconds) == (True, 30)


async def test_state_in_the_store_expires(rates, store):
    import redis.asyncio

    await rates.take("a", Rate(100.0, 1, ""), 0.0)
    async with redis.asyncio.from_url(store.url) as client:
        (key,) = await client.keys("*")
        assert 0 < await client.pttl(key) <= 2_000


@pytest.mark.parametrize("jump_seconds", [3_600, -3_600])
async def test_clock_of_the_store_that_is_set_refuses_nothing(rates, jump_seconds):
    """A key whose burst was taken just before waits for its next image, and not for the hour."""
    assert await taken(rates, SLOW.burst) == SLOW.burst
    key = rate_store.PREFIX + "a"
    paid_at, written_at = map(float, (await rates._client.get(key)).split())
    await rates._client.set(key, f"{paid_at - jump_seconds:.6f} {written_at - jump_seconds:.6f}")
    grant = await rates.take("a", SLOW, 0.0)
    if jump_seconds > 0:  # as if an hour had passed: 3.6 images are paid back
        assert grant.admitted
    else:
        assert not grant.admitted
        assert 0 < grant.wait_seconds <= 1 / SLOW.per_second


async def test_state_of_another_format_is_a_full_burst(rates):
    await rates._client.set(rate_store.PREFIX + "a", "99999999999.0")
    assert await taken(rates, SLOW.burst + 1) == SLOW.burst


async def found(url: str | None) -> list[Finding]:
    """What `gateway doctor` finds."""
    return await doctor.rate_store(Settings(_env_file=None, rate_store_url=url))


async def test_store_that_answers_is_well_and_one_that_is_away_is_a_warning(store):
    """Also the second time: the check does not exceed a rate of its own."""
    assert await found(None) == []
    for _ in range(2):
        (finding,) = await found(store.url)
        assert finding.level is Level.OK
    store.kill()
    (finding,) = await found(store.url)
    assert finding.level is Level.WARN
    assert "GATEWAY_RATE_STORE_URL" in finding.advice


async def test_missing_client_is_a_failure(monkeypatch):
    monkeypatch.setattr("gateway_plugins.keys.rates.find_spec", lambda name: None)
    (finding,) = await found("redis://localhost:1/0")
    assert finding.level is Level.FAIL
    assert "pip install" in finding.text
