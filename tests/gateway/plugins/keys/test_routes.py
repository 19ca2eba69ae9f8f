"""Each rule of a key holds on each route: a table of rules and routes, whose rows are the routes of the application."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from gateway.api.route_table import Access
from gateway.errors import RateLimited, TooCostly
from gateway.inference.backend import Call
from gateway.inference.result import Row
from gateway.limits.account import Account
from gateway.plugins.keys.key_file import add_key
from tests.doubles.backend import PNG, StubBackend, scored, with_vector
from tests.gateway.api.tensors import in_json
from tests.keys import key_of
from tests.processes import wait_for
from tests.services import ROUTES, stream_service

MODEL = "ensemble_model"
TIMEOUT_SECONDS = 7.0
STATUSES = {error.code: int(error.status) for error in (RateLimited, TooCostly)}

Send = Callable[[str, dict[str, str]], int]
"""Sends one request to an address host:port with the headers of a key; returns the status of its response."""


@dataclass(frozen=True)
class Entry:
    """How to use one route with a key."""

    send: Send
    names_model: bool = True
    images: int = 0
    """Images that a request is charged for; 0 for a route without images."""
    charged: bool = False
    """Whether a request without images is charged like one image."""


def get(path: str) -> Send:
    return lambda address, key: httpx.get(f"http://{address}{path}", headers=key, timeout=60).status_code


def post(path: str, **options: object) -> Send:
    return lambda address, key: httpx.post(f"http://{address}{path}", headers=key, timeout=60, **options).status_code


def send_frame(address: str, key: dict[str, str]) -> int:
    """Open a stream and send a frame: the status of either."""
    url = f"ws://{address}/stream?smoothing=none"
    try:
        with connect(url, proxy=None, compression=None, additional_headers=key) as client:
            client.send(PNG)
            error = json.loads(client.recv(60))["error"]
            return 200 if error is None else STATUSES[error["code"]]
    except InvalidStatus as refused:
        return refused.response.status_code


def read(path: str) -> Entry:
    """How to read a route that needs no body."""
    return Entry(get(path.format(name=MODEL, version="1", number="0")), names_model="{name}" in path)


FILE = {"files": {"files": ("a.png", PNG)}}
V2_MODEL, TENSOR = f"/v2/models/{MODEL}", {"json": in_json(PNG)}
ENTRIES = {
    **{each.path: read(each.path) for each in ROUTES if each.traits.access is Access.KEY and "GET" in each.methods},
    "/predict": Entry(post("/predict", **FILE), images=1),
    "/embed": Entry(post("/embed", **FILE), images=1),
    "/explain": Entry(post("/explain?masks=1", **FILE), images=2),
    "/stream": Entry(send_frame, images=1),
    "/v2/models/{name}/infer": Entry(post(f"{V2_MODEL}/infer", **TENSOR), images=1),
    "/v2/models/{name}/versions/{version}/infer": Entry(post(f"{V2_MODEL}/versions/1/infer", **TENSOR), images=1),
    "/feedback": Entry(post("/feedback", json={"request_id": "r", "wrong": True}), charged=True),
    "/v2/repository/index": Entry(post("/v2/repository/index", json={}), names_model=False),
}
WITH_IMAGES = [path for path, entry in ENTRIES.items() if entry.images]
WITH_MODELS = [path for path, entry in ENTRIES.items() if entry.names_model]
WITHOUT_LIMITS = {"/limits"}
"""Every key may ask what it may do."""


class Recorder:
    """A backend's answers to all kinds of requests; records the deadline and the images in flight of a call."""

    key = ""
    in_flight = 0.0
    left_seconds = 0.0

    def __call__(self, call: Call) -> Row:
        self.left_seconds = call.deadline.left_seconds
        self.in_flight = REGISTRY.get_sample_value("gateway_key_images_in_flight", {"key": self.key}) or 0.0
        return scored(0.1, 0.9) if call.selection is None else with_vector(call)


@dataclass(frozen=True)
class Service:
    """A gateway with a key file."""

    address: str
    backend: Recorder
    path: Path

    def key(self, name: str, **options: str) -> dict[str, str]:
        """The headers of a new key; its name is also the one that the backend records."""
        self.backend.key = name
        return key_of(self.path, name, **options)


@pytest.fixture(scope="module")
def service(tmp_path_factory) -> Iterator[Service]:
    folder, recorder = tmp_path_factory.mktemp("keys"), Recorder()
    backend = StubBackend(recorder, combine=lambda frames: frames[-1])
    path = folder / "keys"
    add_key(path, "with-quota", ["share=1"])
    limits = {"default_timeout_seconds": TIMEOUT_SECONDS, "max_timeout_seconds": TIMEOUT_SECONDS}
    options = {"api_keys_file": path, "log_predictions": str(folder / "log"), "max_wait_seconds": 0.001, **limits}
    with stream_service(backend, **options) as (address, _):
        yield Service(address, recorder, path)


def name_of(rule: str, path: str) -> str:
    return f"{rule}{path}".translate(str.maketrans("/{}", "._."))


def test_every_route_has_an_entry():
    """Routes that need a key; the others are in tests/gateway/api/test_auth.py."""
    assert {route.path for route in ROUTES if route.traits.access is Access.KEY} == set(ENTRIES)
    assert {route.path for route in ROUTES if route.traits.takes_images} | {"/stream"} == set(WITH_IMAGES)
    assert {path for path in ENTRIES if "{name}" in path} <= set(WITH_MODELS)


@pytest.mark.parametrize("path", ENTRIES)
def test_routes(service, path):
    key = service.key(name_of("routes", path), routes="/none")
    assert (ENTRIES[path].send(service.address, key) == 403) == (path not in WITHOUT_LIMITS)


@pytest.mark.parametrize("path", WITH_MODELS)
def test_models(service, path):
    send = ENTRIES[path].send
    assert send(service.address, service.key(name_of("other", path), models="other")) == 403
    assert send(service.address, service.key(name_of("same", path), models=MODEL)) in {200, 202, 404}


@pytest.mark.parametrize("path", ENTRIES)
def test_rate(service, path):
    entry = ENTRIES[path]
    key = service.key(name_of("rate", path), rate=f"{entry.images or 1}/h")
    statuses = [entry.send(service.address, key) for _ in range(2)]
    if entry.images or entry.charged:
        assert statuses == [202 if entry.charged else 200, 429]
    else:
        assert 429 not in statuses
        assert ENTRIES["/predict"].send(service.address, key) == 200


@pytest.mark.parametrize("path", WITH_IMAGES)
def test_share(service, path):
    """The images in flight are counted for the key, so they need a permit of its share."""
    service.backend.in_flight = 0.0
    assert ENTRIES[path].send(service.address, service.key(name_of("share", path), share="0.5")) == 200
    assert service.backend.in_flight >= 1


@pytest.mark.parametrize("path", WITH_IMAGES)
def test_account(service, path, monkeypatch):
    def spent(_: Account) -> None:
        raise TooCostly("Spent.")

    monkeypatch.setattr(Account, "check", spent)
    key = service.key(name_of("account", path), share="1")
    assert ENTRIES[path].send(service.address, key) == TooCostly.status


@pytest.mark.parametrize("path", WITH_IMAGES)
def test_deadline(service, path):
    service.backend.left_seconds = -1.0
    assert ENTRIES[path].send(service.address, service.key(name_of("deadline", path), share="1")) == 200
    assert 0 < service.backend.left_seconds <= TIMEOUT_SECONDS


@pytest.mark.parametrize("path", ENTRIES)
def test_log(service, path):
    name = name_of("log", path)
    key = service.key(name, share="1")
    with capture_logs() as events:
        ENTRIES[path].send(service.address, key)
        wait_for(lambda: any(event.get("key") == name for event in events))
    (event,) = [event for event in events if event.get("key") == name]
    assert event["event"] == "request"
    if path in WITH_IMAGES or path == "/feedback":
        assert event["model"] == MODEL
