"""ARCHITECTURE.md names every module that one request passes through, up to the call of the inference server."""

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import pytest

from gateway.app import create_app
from tests.doubles.backend import PNG, StubBackend
from tests.processes import PROJECT
from tests.settings import Settings

PAGE = (PROJECT / "ARCHITECTURE.md").read_text("utf-8")
SECTION = PAGE[PAGE.index("## One image, file by file") : PAGE.index("Each request has a task")]
NAMED = tuple(re.findall(r"`([a-z_/]+(?:\.py|/))`", SECTION))


@pytest.mark.anyio
async def test_modules_of_a_request_are_named():
    app, passed = create_app(Settings(_env_file=None), StubBackend()), set[str]()

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PROJECT / "gateway"):
            passed.add(path.relative_to(PROJECT / "gateway").as_posix())

    async with app.router.lifespan_context(app) as state:

        async def with_state(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state)}, receive, send)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(with_state), base_url="http://localhost") as client:
            sys.setprofile(note)
            try:
                answer = await client.post("/predict", files={"files": ("a.png", PNG)})
            finally:
                sys.setprofile(None)
    assert answer.status_code == 200
    assert {"predict.py", "api/middleware.py", "inference/service.py"} <= passed
    passed.discard("server/heartbeat.py")
    core = {name for name in passed if not name.startswith("plugins/")}
    assert {name for name in core if not name.startswith(NAMED)} == set()
