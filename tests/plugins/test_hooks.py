"""Hooks of plug-ins from outside the repository, such as ASGI middleware or a step of an image; then the lists that
name the hooks and the plug-ins of this repository.

A check of keys by signed tokens is in test_third_party.py, as the guide has it.
"""

import inspect
import re
import tomllib
from collections.abc import Sequence
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import hooks
from gateway.app import create_app
from gateway.errors import ImageTooLarge, UserError
from gateway.hooks import Plugin
from gateway.inference.steps import ImageTask, Step
from gateway.plugins import installed
from gateway_plugins.keys.plugin import ApiKeys
from tests.asking import encode
from tests.doubles.backend import PNG, StubBackend
from tests.processes import PROJECT
from tests.services import client_of_app
from tests.settings import Settings


def test_service_with_admins_or_metrics_for_keys_does_not_start_without_a_check_of_keys():
    """Else anybody could load models, or read the metrics."""

    class Admins(Plugin):
        def has_admins(self) -> bool:
            return True

    class AdminKeys(Plugin):
        def authenticator(self) -> Any:
            return SimpleNamespace(admin_only=True)

    for settings, plugins, words in (
        ({}, (Admins,), "no plug-in checks keys"),
        ({"metrics_access": "key"}, (), "GATEWAY_METRICS_ACCESS=key, and no plug-in checks keys"),
        ({"metrics_access": "key"}, (AdminKeys,), "GATEWAY_METRICS_ACCESS=key, and only the keys of admins"),
    ):
        with pytest.raises(UserError, match=words):
            create_app(Settings(_env_file=None, **settings), StubBackend(), plugins=plugins)


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


FOLDERS = sorted(path.parent.name for path in (PROJECT / "gateway_plugins").glob("*/plugin.py"))
ENTRY_POINTS = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["entry-points"][hooks.GROUP]
HOOKS = {name for name in vars(hooks.Plugin) if not name.startswith("_")} - {"idle_hooks"}


@pytest.mark.parametrize("folder", FOLDERS)
def test_plugin_is_installed_and_listed(folder):
    module = f"gateway_plugins.{folder}.plugin"
    modules = {target.partition(":")[0] for target in ENTRY_POINTS.values()}
    assert module in modules, f"add the entry point {folder} of {module} to pyproject.toml, then: pip install -e ."
    assert module in {kind.__module__ for kind in installed()}, "the entry point is not installed: pip install -e ."
    rows = re.findall(r"^\| `(\w+)/` \|", (PROJECT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    assert folder in rows, f"add {folder}/ to the table of plug-ins in ARCHITECTURE.md"


def test_hooks_are_listed():
    listed = re.findall(r"^    ([a-z_]+(?:, [a-z_]+)*)  ", inspect.getdoc(hooks) or "", re.MULTILINE)
    names = {name for cell in listed for name in cell.split(", ")} - {"hook"}
    assert names == HOOKS, "each hook has a line in the table at the top of gateway/hooks.py"
