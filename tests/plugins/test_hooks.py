"""Hooks of plug-ins from outside the repository: a check of keys, ASGI middleware, a step of an image.

A check of keys by signed tokens is in test_third_party.py, as the guide has it.
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256

import numpy as np
import pytest
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.testing import capture_logs

from gateway.app import create_app
from gateway.errors import Forbidden, ImageTooLarge, RateLimited, UserError
from gateway.hooks import Authenticator, Identity, Plugin
from gateway.inference.steps import ImageTask, Step
from gateway.limits.caller import Caller, Stages
from gateway.plugins import installed
from gateway_plugins.keys.plugin import ApiKeys
from tests.asking import encode
from tests.doubles.backend import PNG, StubBackend
from tests.services import Client, client_of_app
from tests.settings import Settings


class Guest(Caller):
    """May send one image, to /predict, for one model."""

    def __init__(self) -> None:
        self.left = 1

    def check_route(self, path: str) -> None:
        if path != "/predict":
            raise Forbidden("Guests may use /predict alone.")

    async def charge(self, most_seconds: float, stages: Stages, images: int = 1) -> None:
        if self.left < images:
            raise RateLimited("Guests may send one image.")
        self.left -= images

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"x-images-left", b"%d" % self.left)]


class Names:
    """Whoever sends the name `owner` is an admin; `ann` and `bob` are guests."""

    admin_only = False

    def __init__(self) -> None:
        self._guests = {b"ann": Guest(), b"bob": Guest()}

    def identify(self, key: bytes) -> Identity | None:
        if key == b"owner":
            return Identity("owner", admin=True)
        return Identity(key.decode(), caller=self._guests[key]) if key in self._guests else None


class ByName(Plugin):
    def authenticator(self) -> Authenticator:
        return Names()


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


@pytest.fixture
def client() -> Iterator[Client]:
    app = create_app(Settings(_env_file=None), StubBackend(), plugins=(ByName, *installed()))
    with client_of_app(app) as client:
        yield client


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer ann.0"}, {"X-API-Key": "x"}])
def test_request_without_a_known_key_is_refused(client, headers):
    refused = client.get("/models", headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
    assert client.get("/health/live", headers=headers).status_code == 200


def test_known_key_names_the_client_in_the_log(client):
    with capture_logs() as events:
        assert client.get("/models", headers=key("owner")).status_code == 200
    assert [event["key"] for event in events if event["event"] == "request"] == ["owner"]


def test_caller_of_a_plugin_limits_its_requests(client):
    answers = [client.post("/predict", files={"f": PNG}, headers=key("ann")) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[0].headers["x-images-left"] == "0"
    assert client.post("/predict", files={"f": PNG}, headers=key("bob")).status_code == 200
    assert client.get("/models", headers=key("bob")).status_code == 403


def test_service_with_admins_or_metrics_for_keys_does_not_start_without_a_check_of_keys():
    """Else anybody could load models, or read the metrics."""

    class Admins(Plugin):
        def has_admins(self) -> bool:
            return True

    class OnlyAdmins(Names):
        admin_only = True

    class AdminNames(Plugin):
        def authenticator(self) -> Authenticator:
            return OnlyAdmins()

    with pytest.raises(UserError, match="no plug-in checks keys"):
        create_app(Settings(_env_file=None), StubBackend(), plugins=(Admins,))
    with pytest.raises(UserError, match="GATEWAY_METRICS_ACCESS"):
        create_app(Settings(_env_file=None, metrics_access="key"), StubBackend(), plugins=(AdminNames,))


def test_openapi_document_declares_the_key(client):
    operation = client.get("/openapi.json", headers=key("owner")).json()["paths"]["/predict"]["post"]
    assert operation["security"]
    assert "401" in operation["responses"]


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


class Outer(Plugin):
    """Adds two headers."""

    def middleware(self) -> Sequence[Middleware]:
        return (Middleware(AddsHeader, "1"), Middleware(AddsHeader, value="2"))


class Inner(Plugin):
    """Adds one header."""

    def middleware(self) -> Sequence[Middleware]:
        return (Middleware(AddsHeader, "3"),)


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


class SmallImages(Plugin):
    """Refuses images that are wider than 100 pixels."""

    def steps(self) -> Sequence[Step]:
        return (self.refuse_large,)

    async def refuse_large(self, image: ImageTask) -> None:
        if image.info.width > 100:
            raise ImageTooLarge(f"{image.upload.filename} is {image.info.width} pixels wide.")


def test_step_refuses_one_image_and_costs_no_other():
    large, small = (encode(np.zeros((80, width, 3), np.uint8), ".png") for width in (101, 100))
    with client_of_app(create_app(Settings(_env_file=None), StubBackend(), [SmallImages])) as client:
        answer = client.post("/predict", files=[("f", ("a.png", large)), ("f", ("b.png", small))])
    refused, classified = answer.json()["results"]
    assert refused["error"] == {"code": "image_too_large", "message": "a.png is 101 pixels wide."}
    assert (classified["status"], refused["width"]) == ("ok", 101)
