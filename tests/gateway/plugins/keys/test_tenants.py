"""Keys with quotas, through the application: permissions, charges, and responses."""

import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from gateway.settings import MIB
from tests.doubles.backend import PNG, StubBackend, with_vector
from tests.keys import key_of
from tests.processes import wait_for
from tests.services import Client, client_of, stub_service
from tests.settings import Settings


@contextmanager
def limited(path: Path, **settings: object) -> Iterator[Client]:
    with client_of(StubBackend(with_vector), api_keys_file=path, max_wait_seconds=0.001, **settings) as client:
        yield client


def predict(client: Client, key: dict[str, str], files: int = 1, query: str = ""):
    return client.post(f"/predict{query}", files=[("files", ("a.png", PNG))] * files, headers=key)


def metric(client: Client, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", client.get("/metrics").text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_request_past_the_rate_is_refused_with_the_time_to_wait(path):
    key, other = key_of(path, rate="3/h"), key_of(path, "other")
    with limited(path) as client:
        first = predict(client, key, files=3)
        assert first.status_code == 200
        refused = predict(client, key)
        assert predict(client, other).status_code == 200
    assert first.headers["ratelimit-policy"] == '"images";q=3;w=3600'
    assert first.headers["ratelimit"].startswith('"images";r=0;t=')
    problem = refused.json()
    assert (refused.status_code, problem["code"], problem["limit"]) == (429, "rate_limited", "rate")
    assert 0 < int(refused.headers["retry-after"]) <= 3600
    assert "3/h" in problem["detail"]
    remaining, reset = re.fullmatch(r'"images";r=(\d+);t=(\d+)', refused.headers["ratelimit"]).groups()
    assert int(remaining) == 0
    assert int(reset) <= int(refused.headers["retry-after"])


def test_each_file_is_charged(path):
    """A file that is not an image is charged as well."""
    key = key_of(path, rate="6/h")
    with limited(path) as client:
        assert client.post("/predict", files={"files": ("a.txt", b"text")}, headers=key).status_code == 415
        assert predict(client, key, files=3).headers["ratelimit"].startswith('"images";r=2;')
        # Not longer, or the third image would wait for an hour that begins soon.
        answer = predict(client, key, files=4, query="?timeout=1").json()
    assert [result["status"] for result in answer["results"]] == ["ok", "ok", "error", "error"]
    assert answer["results"][3]["error"]["code"] == "rate_limited"


def test_days_and_months_begin_anew_in_utc(path, monkeypatch):
    """The last image passes, and the next one is refused with the time of the reset."""
    now = datetime(2026, 11, 29, 23, 59, 30, tzinfo=UTC)
    monkeypatch.setattr("gateway.plugins.keys.quota.utc_now", lambda: now)
    key = key_of(path, **{"per-day": "3", "per-month": "4"})

    with limited(path) as client:
        assert predict(client, key, files=2).status_code == 200
        last, refused = predict(client, key), predict(client, key)
        assert (last.status_code, refused.status_code) == (200, 429)
        assert last.headers["ratelimit-policy"] == '"day";q=3;w=86400, "month";q=4;w=2592000'
        assert last.headers["ratelimit"] == '"day";r=0;t=30, "month";r=1;t=86430'
        problem = refused.json()
        assert (problem["code"], problem["limit"], problem["value"]) == ("rate_limited", "per-day", 3)
        assert (problem["resets_at"], refused.headers["retry-after"]) == ("2026-11-30T00:00:00Z", "30")
        now += timedelta(seconds=30)
        assert predict(client, key, files=3).json()["summary"] == {"ok": 1, "failed": 2}
        refused = predict(client, key)
        assert (refused.status_code, refused.json()["limit"]) == (429, "per-month")
        assert refused.headers["retry-after"] == "86400"
        assert metric(client, 'gateway_key_refusals_total{key="app",reason="period"}') >= 4
        now += timedelta(days=1)
        assert predict(client, key, files=3).json()["summary"] == {"ok": 3, "failed": 0}


def test_image_beyond_the_rate_is_not_counted_for_the_day(path):
    """A changed limit keeps the count, since it is the day's."""
    key = key_of(path, rate="2/h", **{"per-day": "3"})
    with limited(path) as client:
        assert [predict(client, key).status_code for _ in range(3)] == [200, 200, 429]
        path.write_text(path.read_text().replace("rate=2/h ", ""))
        assert [predict(client, key).status_code for _ in range(2)] == [200, 429]


def test_images_of_a_begun_request_wait_for_the_rate(path):
    key = key_of(path, rate="4/s")
    began = time.monotonic()
    with limited(path) as client:
        answer = predict(client, key, files=7).json()
    assert answer["summary"] == {"ok": 7, "failed": 0}
    assert time.monotonic() - began > 0.4


def test_refusal_comes_after_a_pause(path, monkeypatch):
    """A client that sends again at once cannot keep the gateway busy with refusals."""
    monkeypatch.setattr("gateway.api.middleware.REFUSAL_SECONDS", 0.2)
    key = key_of(path, rate="1/h")
    with limited(path) as client:
        predict(client, key)
        began = time.monotonic()
        assert predict(client, key).status_code == 429
        assert time.monotonic() - began >= 0.19


def test_key_may_use_and_sees_the_models_of_its_quota_only(path):
    keys = [key_of(path, models="ensemble_model,dogs"), key_of(path, "b", models="x"), key_of(path, "p")]
    with limited(path) as client:
        assert predict(client, keys[0]).status_code == 200
        refused = predict(client, keys[0], query="?model=cats")
        some, none, every = (
            [model["name"] for model in client.get("/models", headers=key).json()["models"]] for key in keys
        )
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert "ensemble_model, dogs" in refused.json()["detail"]
    assert every
    assert some == [name for name in every if name in {"ensemble_model", "dogs"}] != []
    assert none == []


def test_key_may_use_the_routes_of_its_quota_only(path):
    key = key_of(path, routes="/predict,/v2")
    with limited(path) as client:
        assert predict(client, key).status_code == 200
        for target, expected in (
            ("/models", 403),
            ("/v2/models/ensemble_model", 200),
            ("/limits", 200),
            ("/none", 404),
        ):
            assert client.get(target, headers=key).status_code == expected, target
        refused = client.post("/embed", content=PNG, headers=key | {"Content-Type": "image/png"})
    assert refused.status_code == 403
    assert "/predict, /v2" in refused.json()["detail"]


def test_key_with_the_smallest_share_has_one_image_in_flight(path):
    key = key_of(path, share="0.001")
    with limited(path, max_images_in_flight=32) as client:
        assert predict(client, key, files=3).json()["summary"] == {"ok": 3, "failed": 0}


def test_admin_key_has_no_rate(path, tmp_path):
    """Not even if the file of API keys has it as well, with a quota."""
    admin = key_of(path, rate="1/h")
    (tmp_path / "admins").write_text(path.read_text().partition(" ")[0])
    with limited(path, admin_keys_file=tmp_path / "admins") as client:
        assert [predict(client, admin).status_code for _ in range(3)] == [200] * 3


def test_changed_quota_takes_effect_and_its_rate_begins_anew(path):
    key = key_of(path, "changed", rate="1/h")
    with limited(path) as client:
        assert [predict(client, key).status_code for _ in range(2)] == [200, 429]
        path.write_text(path.read_text().replace("rate=1/h", "rate=2/h"))
        assert [predict(client, key).status_code for _ in range(3)] == [200, 200, 429]
        path.write_text(path.read_text().partition(" ")[0] + "\n")
        assert [predict(client, key).status_code for _ in range(3)] == [200] * 3


def test_usage_of_each_key_is_counted(path):
    key = key_of(path, "counted", rate="2/h", models="ensemble_model")
    with limited(path) as client:
        predict(client, key)
        client.post("/predict", files={"files": ("a.txt", b"text")}, headers=key)
        predict(client, key)
        assert metric(client, 'gateway_key_images_total{key="counted",outcome="ok"}') == 1
        assert metric(client, 'gateway_key_images_total{key="counted",outcome="failed"}') == 1
        assert metric(client, 'gateway_key_refusals_total{key="counted",reason="rate"}') == 1
        assert metric(client, 'gateway_key_images_in_flight{key="counted"}') == 0


@pytest.mark.parametrize(
    ("workers", "option", "url", "count"),
    [
        (2, "rate", None, 1),
        (2, "per-month", None, 1),
        (1, "rate", None, 0),
        (2, "rate", "redis://127.0.0.1:1/0", 0),
        (2, "share", None, 0),
    ],
)
def test_workers_that_count_for_themselves_are_logged(path, workers, option, url, count):
    key = key_of(path, **{option: "1/h" if option == "rate" else "1"})
    with limited(path, workers=workers, rate_store_url=url) as client, capture_logs() as events:
        assert predict(client, key).status_code == 200
    assert [event["event"] for event in events].count("rates_not_shared") == count


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("redis://host", "redis://host"),
        ("rediss://:secret@host:6380/2", "rediss://:secret@host:6380/2"),
        ("valkey://host:6379/0", "redis://host:6379/0"),
        ("valkeys://host", "rediss://host"),
        ("unix:///run/valkey.sock?db=1", "unix:///run/valkey.sock?db=1"),
    ],
)
def test_url_of_the_store(given, url):
    settings = Settings(_env_file=None, rate_store_url=given)
    assert settings.rate_store_url.get_secret_value() == url
    assert url not in repr(settings)


@pytest.mark.parametrize("given", ["host:6379", "http://host", "redis://", "redis:///0", ""])
def test_other_urls_of_a_store_are_refused(given):
    with pytest.raises(ValueError, match="redis://host:6379/0"):
        Settings(_env_file=None, rate_store_url=given)


def test_waiting_uploads_of_a_key_take_no_more_than_its_share_of_the_buffer(path):
    """One upload stops with almost all of the key's part; another key's upload has the rest."""
    key, other = key_of(path, share="0.5"), key_of(path, "other")
    sizes = {"max_bytes_waiting": MIB, "max_file_bytes": MIB // 2}
    raw = {"Content-Type": "image/png"}
    with stub_service(api_keys_file=path, **sizes) as url, closing(HTTPConnection(url.removeprefix("http://"))) as slow:

        def post(headers: dict[str, str]) -> httpx.Response:
            return httpx.post(f"{url}/predict", content=PNG + bytes(MIB // 3), headers=headers | raw, timeout=60)

        slow.putrequest("POST", "/predict")
        for name, value in {**key, **raw, "Content-Length": str(MIB // 2)}.items():
            slow.putheader(name, value)
        slow.endheaders(PNG + bytes(MIB // 2 - len(PNG) - 1))
        wait_for(lambda: REGISTRY.get_sample_value("gateway_waiting_bytes") > MIB / 3)
        refused = post(key)
        assert (refused.status_code, refused.json()["code"], refused.json()["limit"]) == (503, "overloaded", "share")
        assert post(other).status_code == 200
        slow.send(b"x")
        assert slow.getresponse().status == 200
        assert post(key).status_code == 200
