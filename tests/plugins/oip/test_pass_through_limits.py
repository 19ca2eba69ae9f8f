"""Keys, deadlines and limits of tensors that pass through /v2, in this process."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from prometheus_client import REGISTRY

from tests.keys import key_of
from tests.plugins.oip.echo import INFER, MODEL, EchoBackend, tensor
from tests.processes import wait_for
from tests.services import Client, client_of, stub_service

PROBLEM = {"Accept": "application/problem+json"}


@contextmanager
def serving(**settings: object) -> Iterator[tuple[Client, EchoBackend]]:
    backend = EchoBackend()
    with client_of(backend, v2_models=MODEL, **settings) as client:
        yield client, backend


def ask(client: Client, rows: int = 1, headers: dict[str, str] | None = None, **members: object) -> httpx.Response:
    return client.post(INFER, json={"inputs": [tensor(rows)], **members}, headers={**PROBLEM, **(headers or {})})


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json().get("code", "")


def test_timeout_is_the_deadline_of_the_call():
    """The longest one passes, and a longer one does not."""
    with serving(max_timeout_seconds=60) as (client, backend):
        assert ask(client, parameters={"timeout": 5_000_000}).status_code == 200
        assert 4 < backend.deadlines[0].left_seconds <= 5
        assert 4e6 < backend.requests[0].parameters["timeout"].int64_param <= 5e6
        assert ask(client, parameters={"timeout": 60_000_000}).status_code == 200
        refused = ask(client, parameters={"timeout": 60_000_001})
    assert (code(refused), len(backend.requests)) == ((422, "invalid_parameter"), 2)


def test_call_past_its_deadline_is_refused_and_keeps_its_permit():
    """Triton works on it until it ends; others wait for as long as they may, and then pass."""
    with serving(max_images_in_flight=1, batch_max_images=1, max_wait_seconds=0.1) as (client, backend):
        backend.gate.clear()
        assert code(ask(client, parameters={"timeout": 100_000})) == (504, "deadline_exceeded")
        waited = ask(client)
        assert (code(waited), waited.json()["limit"]) == ((503, "overloaded"), "max_wait_seconds")
        assert code(ask(client, parameters={"timeout": 50_000})) == (504, "deadline_exceeded")
        assert len(backend.requests) == 1
        backend.gate.set()
        assert ask(client, parameters={"timeout": 30_000_000}).status_code == 200


def test_request_of_a_client_that_disconnects_is_not_sent():
    """It waits for a permit when its client leaves; the requests before and after it are answered."""
    backend = EchoBackend()
    backend.gate.clear()
    body = {"inputs": [tensor()]}
    settings = {"v2_models": MODEL, "max_images_in_flight": 1, "batch_max_images": 1, "max_wait_seconds": 60}
    with stub_service(backend, **settings) as url, ThreadPoolExecutor(1) as threads:
        try:
            first = threads.submit(httpx.post, url + INFER, json={**body, "id": "first"}, timeout=60)
            wait_for(lambda: backend.requests)
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(url + INFER, json={**body, "id": "gone"}, timeout=httpx.Timeout(10, read=0.5))
            wait_for(lambda: REGISTRY.get_sample_value("gateway_images_waiting") == 0)
        finally:
            backend.gate.set()
        assert first.result().status_code == 200
        assert httpx.post(url + INFER, json={**body, "id": "last"}, timeout=60).status_code == 200
    assert [request.id for request in backend.requests] == ["first", "last"]


def test_batch_is_charged_by_its_images(tmp_path):
    """The burst passes, and one more image does not: it is refused whole, and takes nothing of the rate."""
    key = key_of(tmp_path / "keys", rate="1/h", burst="6")
    with serving(api_keys_file=tmp_path / "keys") as (client, backend):
        three = ask(client, 3, key)
        assert (three.status_code, three.headers["ratelimit"][:13]) == (200, '"images";r=3;')
        refused = ask(client, 4, key)
        assert (code(refused), refused.headers["ratelimit"][:13]) == ((429, "rate_limited"), '"images";r=2;')
        assert "the batch has 3 more" in refused.json()["detail"]
        assert "1 image per h" in refused.json()["detail"]
        assert 0 < int(refused.headers["retry-after"]) <= 3_600
        assert ask(client, 2, key).headers["ratelimit"].startswith('"images";r=0;')
        assert code(ask(client, 1, key)) == (429, "rate_limited")
    assert [list(request.inputs[0].shape) for request in backend.requests] == [[3, 2], [2, 2]]


def test_batch_that_never_passes_is_not_to_be_sent_again(tmp_path):
    """It would wait longer than its timeout even after any pause: there is no time at which to send it again."""
    key = key_of(tmp_path / "keys", rate="1/h", burst="6")
    with serving(api_keys_file=tmp_path / "keys") as (client, _):
        refused = ask(client, 8, key)
        assert code(refused) == (429, "rate_limited")
        assert "at most 6 can pass" in refused.json()["detail"]
        assert "retry-after" not in refused.headers
        assert "retry-after" in ask(client, 7, key).headers


def test_batch_waits_for_its_turn_within_its_deadline(tmp_path):
    key = key_of(tmp_path / "keys", rate="20/s", burst="1")
    with serving(api_keys_file=tmp_path / "keys") as (client, _):
        answer = ask(client, 5, key)
        assert answer.status_code == 200
        assert float(answer.headers["server-timing"].partition("wait;dur=")[2].partition(",")[0]) > 150
        assert code(ask(client, 50, key, parameters={"timeout": 1_000_000})) == (429, "rate_limited")


def test_size_that_no_data_has_is_not_charged(tmp_path):
    key = key_of(tmp_path / "keys", rate="1/s", burst="1000")
    empty = {"name": "IDS", "datatype": "INT32", "shape": [2**62, 0], "data": []}
    with serving(api_keys_file=tmp_path / "keys") as (client, _):
        answer = client.post(INFER, json={"inputs": [empty]}, headers=key)
    assert answer.status_code == 200
    assert int(answer.headers["ratelimit"].partition("r=")[2].partition(";")[0]) > 800


def test_key_reaches_the_models_of_its_quota_alone(tmp_path):
    allowed, other = key_of(tmp_path / "keys", models=MODEL), key_of(tmp_path / "keys", "b", models="flowers")
    with serving(api_keys_file=tmp_path / "keys") as (client, backend):
        for path in (INFER, f"/v2/models/{MODEL}/versions/1/infer"):
            assert client.post(path, json={"inputs": [tensor()]}, headers=allowed).status_code == 200
            refused = client.post(path, json={"inputs": [tensor()]}, headers={**PROBLEM, **other})
            assert code(refused) == (403, "forbidden")
        for path in (f"/v2/models/{MODEL}", f"/v2/models/{MODEL}/ready"):
            assert client.get(path, headers=allowed).status_code == 200
            assert code(client.get(path, headers={**PROBLEM, **other})) == (403, "forbidden")
    assert len(backend.requests) == 2


@pytest.mark.parametrize("announced", [True, False])
def test_body_of_the_limit_passes_and_one_byte_more_does_not(announced):
    """With Content-Length, and in pieces without."""
    whole = json.dumps({"inputs": [tensor(20)]}).encode()

    async def pieces(body: bytes):
        for start in range(0, len(body), 100):
            yield body[start : start + 100]

    with serving(v2_max_tensor_bytes=len(whole)) as (client, backend):
        answers = [
            client.post(INFER, content=body if announced else pieces(body), headers=PROBLEM)
            for body in (whole, whole + b" ")
        ]
    assert answers[0].status_code == 200
    assert (code(answers[1]), answers[1].json()["limit"]) == ((413, "request_too_large"), "v2_max_tensor_bytes")
    assert len(backend.requests) == 1


@pytest.mark.parametrize(("content", "headers"), [(b"{", {}), (b"{}", {"Inference-Header-Content-Length": "999"})])
def test_body_that_ends_too_early_is_refused(content, headers):
    with serving() as (client, backend):
        answer = client.post(INFER, content=content, headers={**PROBLEM, **headers})
    assert (code(answer), backend.requests) == ((400, "invalid_body"), [])
