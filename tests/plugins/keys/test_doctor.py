"""The check of the store of rates in `gateway doctor`."""

import asyncio

from gateway.findings import Finding, Level
from gateway_plugins.keys.doctor import rate_store
from tests.plugins.keys.stores import needs_store
from tests.settings import Settings

pytestmark = needs_store


def found(url: str | None) -> list[Finding]:
    return asyncio.run(rate_store(Settings(_env_file=None, rate_store_url=url)))


def test_no_store_has_no_line():
    assert found(None) == []


def test_store_that_answers_is_well(store):
    """Also the second time: the check does not exceed a rate of its own."""
    for _ in range(2):
        (finding,) = found(store.url)
        assert finding.level is Level.OK


def test_store_that_is_away_is_a_warning(store):
    store.kill()
    (finding,) = found(store.url)
    assert finding.level is Level.WARN
    assert "GATEWAY_RATE_STORE_URL" in finding.advice


def test_wrong_password_is_a_warning_that_does_not_show_it(store):
    store.kill()
    store.start("--requirepass", "right")
    (finding,) = found(store.url.replace("//", "//:secret@"))
    assert finding.level is Level.WARN
    assert "secret" not in finding.text + finding.advice
    (finding,) = found(store.url.replace("//", "//:right@"))
    assert finding.level is Level.OK


def test_missing_client_is_a_failure(monkeypatch):
    monkeypatch.setattr("gateway_plugins.keys.rates.find_spec", lambda name: None)
    (finding,) = found("redis://localhost:1/0")
    assert finding.level is Level.FAIL
    assert "pip install" in finding.text
