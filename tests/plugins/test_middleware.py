"""The hook for ASGI middleware: one that adds a header to each response."""

from collections.abc import Sequence
from hashlib import sha256

import pytest
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.app import create_app
from gateway.hooks import Plugin
from gateway_plugins.keys.plugin import ApiKeys
from tests.doubles.backend import PNG, StubBackend
from tests.services import client_of_app
from tests.settings import Settings


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
