"""Hooks of plug-ins from outside the repository, such as ASGI middleware or a step of an image; then the lists that
name the hooks and the plug-ins of this repository.

A check of keys by signed tokens is in test_third_party.py, as the guide has it.
"""

import asyncio
import re
import threading
import tomllib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any, cast

import numpy as np
import pytest
import structlog
from fastapi import APIRouter, WebSocket
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import hooks, timing
from gateway.api.route_table import Access, traits
from gateway.app import create_app
from gateway.errors import ImageTooLarge, Unauthorized, UserError
from gateway.hooks import Authenticator, Identity, Plugin, PluginFailed
from gateway.inference.request import Image, Observer
from gateway.plugin_loading import installed
from gateway.plugins.keys.plugin import ApiKeys
from tests.asking import encode
from tests.doubles.backend import PNG, StubBackend
from tests.processes import PROJECT
from tests.services import client_of_app
from tests.settings import Settings


def plugin(name: str, **hooks: Any) -> type[Plugin]:
    """A plug-in whose hooks return these values."""
    return type(name, (Plugin,), {hook: lambda _, value=value: value for hook, value in hooks.items()})


class AddsHeader:
    """Adds a value to the header X-Passed of each response."""

    def __init__(self, app: ASGIApp, value: str) -> None:
        self._app = app
        self._value = value

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-passed", self._value.encode())]
            await send(message)

        await self._app(scope, receive, send_with_header)


Outer = plugin("Outer", middleware=(Middleware(AddsHeader, "1"), Middleware(AddsHeader, value="2")))
Inner = plugin("Inner", middleware=(Middleware(AddsHeader, "3"),))


@pytest.mark.parametrize(
    ("method", "path", "key", "status"),
    [
        ("POST", "/predict", "secret", 200),
        ("GET", "/nothing", "secret", 404),
        ("GET", "/models", "wrong", 401),
        ("GET", "/health/live", None, 200),
    ],
)
def test_middleware_sees_every_response(tmp_path, method, path, key, status):
    """The first plug-in's first middleware is outermost, so each response passes it last."""
    keys = tmp_path / "keys"
    keys.write_text(f"someone:{sha256(b'secret').hexdigest()}\n")
    settings = Settings(_env_file=None, api_keys_file=keys)
    headers = {} if key is None else {"X-API-Key": key}
    files = {"f": PNG} if method == "POST" else None
    with client_of_app(create_app(settings, StubBackend(), [Outer, Inner, ApiKeys])) as client:
        answer = client.request(method, path, files=files, headers=headers)
    assert answer.status_code == status
    assert answer.headers["x-passed"] == "3, 2, 1"


async def refuse_large(image: Image) -> None:
    if image.header.width > 100:
        route = image.request.spec.route
        raise ImageTooLarge(f"{route}: {image.upload.filename} is {image.header.width} pixels wide.")


SmallImages = plugin("SmallImages", steps=(refuse_large,))


def test_step_refuses_one_image_and_costs_no_other():
    large, small = (encode(np.zeros((80, width, 3), np.uint8), ".png") for width in (101, 100))
    with client_of_app(create_app(Settings(_env_file=None), StubBackend(), [SmallImages])) as client:
        answer = client.post("/predict", files=[("f", ("a.png", large)), ("f", ("b.png", small))])
    refused, classified = answer.json()["results"]
    assert refused["error"] == {"code": "image_too_large", "message": "/predict: a.png is 101 pixels wide."}
    assert (classified["status"], refused["width"]) == ("ok", 101)


class Token(Authenticator):
    """Knows one key, and has a reason against another one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def identify(self, key: bytes) -> Identity | None:
        if key == b"expired":
            raise Unauthorized("The token has expired.")
        return Identity(self._name) if key == self._name.encode() else None


def test_authenticators_are_asked_in_turn_and_one_may_have_a_reason():
    tokens = [plugin(name, authenticators=(Token(name),)) for name in ("a", "b")]
    with client_of_app(create_app(Settings(_env_file=None), StubBackend(), tokens)) as client:
        answers = {key: client.get("/models", headers={"X-API-Key": key}) for key in ("a", "b", "c", "expired")}
    assert [answer.status_code for answer in answers.values()] == [200, 200, 401, 401]
    assert answers["expired"].json()["detail"] == "The token has expired."


class FewerArguments(Plugin):
    """Names a part of the arguments, or none."""

    @classmethod
    def ports(cls) -> Sequence[hooks.Port]:  # type: ignore[override]
        return (hooks.Port("port", 1, "nothing"),)

    def record_rollout(self, rollout: Any) -> Any:  # type: ignore[override]
        return rollout


def test_hook_gets_the_arguments_that_it_names():
    settings = Settings(_env_file=None)
    plugins = hooks.Plugins([FewerArguments(settings), Outer(settings)])
    assert [port.number for port in plugins.ports(settings)] == [1]
    assert cast("Any", plugins).record_rollout("flowers", "all") == "all"


class Fails(Plugin):
    """Fails while the application is made."""

    def routers(self) -> Any:
        raise ValueError("no routes")


NoMetrics = type("NoMetrics", (Plugin,), {"metrics": "nothing_of_that_name"})


class HasMore(Plugin):
    """Has an argument that the hook does not have."""

    def routers(self, app) -> Any:  # type: ignore[override]
        return app


@pytest.mark.parametrize(
    ("plugin", "words"),
    [
        (Fails, "the plug-in 'Fails' failed in routers: ValueError: no routes"),
        (NoMetrics, "the plug-in 'NoMetrics' failed to load nothing_of_that_name: ModuleNotFoundError"),
        (HasMore, "the plug-in 'HasMore' failed in routers: TypeError: .*HasMore.routers has the argument 'app'"),
    ],
)
def test_hook_that_fails_at_the_start_is_named(plugin, words):
    with pytest.raises(PluginFailed, match=words):
        create_app(Settings(_env_file=None), StubBackend(), [plugin])


class NeverStarts(Plugin):
    """Fails when the service starts."""

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:  # type: ignore[override]
        raise ValueError("no disk")
        yield


def test_code_of_a_plug_in_that_fails_while_the_service_starts_is_named():
    app = create_app(Settings(_env_file=None), StubBackend(), [NeverStarts])
    with pytest.raises(PluginFailed, match="the plug-in 'NeverStarts' failed in lifespan: ValueError: no disk"):
        client_of_app(app).__enter__()


class NeverEnds(Plugin):
    """Does not end with the service."""

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:  # type: ignore[override]
        yield
        await asyncio.Event().wait()


class Blocks(Plugin):
    """Blocks the event loop at the end."""

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:  # type: ignore[override]
        yield
        threading.Event().wait()


@pytest.mark.parametrize("plugin", [NeverEnds, Blocks])
def test_lifespan_that_does_not_end_is_left(monkeypatch, plugin):
    monkeypatch.setattr(hooks, "CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(timing, "BLOCKED_SECONDS", 0.5)
    app = create_app(Settings(_env_file=None), StubBackend(), [plugin])
    with structlog.testing.capture_logs() as logs, client_of_app(app):
        pass
    assert [event["plugin"] for event in logs if event["event"] == "plugin_not_closed"] == [plugin.__name__]


class Broken(Observer):
    """Raises for each result."""

    def done(self, image: Image) -> None:  # type: ignore[override]
        raise ValueError(image.upload.filename)


Observes = plugin("Observes", observers=(Broken(),))


def test_observer_that_fails_is_named_and_costs_no_result():
    app = create_app(Settings(_env_file=None), StubBackend(), [Observes])
    with structlog.testing.capture_logs() as logs, client_of_app(app) as client:
        assert client.post("/predict", files={"f": ("a.png", PNG)}).json()["summary"] == {"ok": 1, "failed": 0}
    failed = [event["observer"] for event in logs if event["event"] == "observer_failed"]
    assert failed == ["tests.gateway.plugins.test_hooks.Broken"]


HasErrors = type("HasErrors", (Plugin,), {"errors": "gateway.plugins.urls.errors"})


def test_error_codes_are_in_the_document():
    with client_of_app(create_app(Settings(_env_file=None), StubBackend(), [HasErrors])) as client:
        problem = client.get("/openapi.json").json()["components"]["schemas"]["Problem"]
    assert {"overloaded", "fetch_failed"} <= set(re.findall(r"`(\w+)`", problem["properties"]["code"]["description"]))


router = APIRouter()


@router.post("/draw", response_class=Response)
@router.post("/hidden", include_in_schema=False)
@traits(takes_images=True)
async def draw() -> None:
    """Answers no JSON at one path, and is hidden at the other."""


Draws = plugin("Draws", routers=(router,))


def test_document_has_routes_that_answer_no_json_and_lacks_hidden_ones():
    with client_of_app(create_app(Settings(_env_file=None), StubBackend(), [Draws])) as client:
        paths = client.get("/openapi.json").json()["paths"]
    assert "/draw" in paths
    assert "/hidden" not in paths


more = APIRouter()


@more.get("/predict")
async def usage() -> str:
    return "POST images here."


@more.delete("/models/{model_id}")
async def drop(model_id: str) -> str:
    return f"{model_id} is dropped."


@more.websocket("/news")
async def news(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.close()


Uses = plugin("Uses", routers=(more,))


def test_route_of_another_method_may_be_added_to_a_path():
    with client_of_app(create_app(Settings(_env_file=None), StubBackend(), [Uses])) as client:
        assert client.get("/predict").json() == "POST images here."
        assert client.post("/predict", files={"f": PNG}).json()["summary"] == {"ok": 1, "failed": 0}
        refused = client.request("PUT", "/predict")
        assert client.get("/models/ensemble_model").json()["name"] == "ensemble_model"
        assert client.request("DELETE", "/models/ensemble_model").json() == "ensemble_model is dropped."
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, POST")


def test_all_routes_of_a_path_have_one_access():
    admins = APIRouter()
    admins.get("/predict")(traits(access=Access.ADMIN)(lambda: "of admins"))
    with pytest.raises(UserError, match="GET /predict of a plug-in has access=admin, and another route of this path"):
        create_app(Settings(_env_file=None), StubBackend(), [plugin("Admins", routers=(admins,))])


def test_request_for_a_path_of_a_websocket_alone_is_refused():
    with client_of_app(create_app(Settings(_env_file=None), StubBackend(), [Uses])) as client:
        refused = client.get("/news")
        assert client.open("/news") == 101
    assert refused.status_code == 405
    assert refused.json()["detail"] == "GET is not allowed on /news; see /docs."


async def fail(image: Image) -> None:
    raise ValueError(image.upload.filename)


Raises = plugin("Raises", steps=(fail,))


def test_step_that_fails_is_named_and_costs_its_request_only():
    app = create_app(Settings(_env_file=None), StubBackend(), [Raises])
    with structlog.testing.capture_logs() as logs, client_of_app(app) as client:
        assert client.post("/predict", files={"f": ("a.png", PNG)}).status_code == 500
        assert client.get("/models").status_code == 200
    assert [event["plugin"] for event in logs if event["event"] == "unexpected_error"] == ["Raises"]


async def wait(image: Image) -> None:
    if image.upload.filename == "b":
        await asyncio.Event().wait()


Waits = plugin("Waits", steps=(wait,))


def test_step_that_never_ends_has_the_deadline_of_its_image():
    files = [("files", (name, PNG)) for name in ("a", "b", "c")]
    with client_of_app(create_app(Settings(_env_file=None), StubBackend(), [Waits])) as client:
        results = client.post("/predict?timeout=0.3", files=files).json()["results"]
    assert [result["error"] and result["error"]["code"] for result in results] == [None, "deadline_exceeded", None]


FOLDERS = sorted(path.parent.name for path in (PROJECT / "gateway" / "plugins").glob("*/plugin.py"))
ENTRY_POINTS = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["entry-points"][hooks.GROUP]


@pytest.mark.parametrize("folder", FOLDERS)
def test_plugin_is_installed_and_listed(folder):
    module = f"gateway.plugins.{folder}.plugin"
    modules = {target.partition(":")[0] for target in ENTRY_POINTS.values()}
    assert module in modules, f"add the entry point {folder} of {module} to pyproject.toml, then: pip install -e ."
    assert module in {kind.__module__ for kind in installed()}, "the entry point is not installed: pip install -e ."
    rows = re.findall(r"^\| `(\w+)/` \|", (PROJECT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    assert folder in rows, f"add {folder}/ to the table of plug-ins in ARCHITECTURE.md"
