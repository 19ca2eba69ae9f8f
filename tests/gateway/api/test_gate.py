"""Early load shedding: while the queue is full, requests with images are refused before any other work."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from prometheus_client import REGISTRY
from starlette.types import Message

from gateway.errors import Overloaded
from gateway.limits.admission import Admission
from tests.doubles.backend import PNG
from tests.gateway.api.tensors import scorer
from tests.processes import wait_for
from tests.services import ROUTES, Client, client_of, stub_service

WITH_IMAGES = [route.path for route in ROUTES if route.traits.takes_images]


@pytest.fixture
def client() -> Iterator[Client]:
    with client_of(scorer()) as client:
        yield client


@pytest.fixture
def full(monkeypatch) -> None:
    """The queue is full."""

    def refuse(_: Admission, share: object) -> None:
        raise Overloaded("Full.")

    monkeypatch.setattr(Admission, "check", refuse)


def refusals(route: str) -> float:
    labels = {"route": route, "status": "503", "code": "overloaded"}
    return REGISTRY.get_sample_value("gateway_requests_total", labels) or 0.0


@pytest.mark.parametrize("route", WITH_IMAGES)
def test_full_queue_refuses_a_request_before_its_body(client, full, route):
    def body(sent: list[Message]) -> Message:
        raise AssertionError("the body was asked for")

    path, before = route.format(name="m", version="1"), refusals(route)
    start, content = client.ask("POST", path, body=body)
    assert start["status"] == 503
    assert (b"retry-after", b"1") in start["headers"]
    assert ("error" in json.loads(content["body"])) == path.startswith("/v2")
    assert refusals(route) == before + 1


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/predict", 405), ("POST", "/models", 405), ("POST", "/predict/more", 404), ("GET", "/models", 200)],
)
def test_other_requests_pass_a_full_queue(client, full, method, path, status):
    assert client.request(method, path).status_code == status
    assert client.get("/v2/models/ensemble_model").status_code == 200


@pytest.mark.parametrize(
    ("limit", "value"), [("max_images_waiting", 1), ("max_wait_seconds", 1)], ids=["length", "longest wait"]
)
def test_queue_has_a_length_and_a_longest_wait(limit, value):
    """With one image in flight, a second one waits; a third one is refused at once, or the second after a while."""
    backend = scorer()
    backend.gate.clear()
    limits = {"max_images_in_flight": 1, "batch_max_images": 1, limit: value}
    with stub_service(backend, **limits) as url, ThreadPoolExecutor(2) as threads:

        def send() -> httpx.Response:
            return httpx.post(f"{url}/predict", files={"f": ("a.png", PNG)}, timeout=60)

        in_flight = threads.submit(send)
        wait_for(lambda: backend.calls)
        waiting = threads.submit(send)
        if limit == "max_wait_seconds":
            refused = waiting.result()
        else:
            wait_for(lambda: REGISTRY.get_sample_value("gateway_images_waiting") == 1)
            refused = send()
            assert not waiting.done()
        problem = refused.json()
        assert (refused.status_code, problem["code"], problem["limit"]) == (503, "overloaded", limit)
        assert problem["value"] == value
        assert int(refused.headers["retry-after"]) >= 1
        assert not in_flight.done()
        backend.gate.set()
        assert in_flight.result().status_code == 200
        assert waiting.result().status_code == (503 if limit == "max_wait_seconds" else 200)
