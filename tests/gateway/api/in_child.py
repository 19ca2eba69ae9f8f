"""Requests to an application in a separate process, whose logs are set up as in production.

structlog keeps its first set-up for ever, so the suite's process cannot try several.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

from gateway.logs import configure_logs
from tests import warm
from tests.doubles.backend import StubBackend
from tests.processes import environment
from tests.services import client_of, decoders_on_demand
from tests.settings import Settings

Ask = tuple[str, str, dict[str, str]]


def logged(requests: Sequence[Ask], *, fault: str | None = None, **settings: Any) -> tuple[list[list[Any]], str]:
    """The responses, and the log."""
    asked = {"settings": settings, "fault": fault, "requests": requests}
    code = "from tests.gateway.api.in_child import answer; answer()"
    completed = warm.run(code, environment=environment(), given=json.dumps(asked, default=str))
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout), completed.stderr


def answer() -> None:
    """In the child process: read the requests, and print each response as [status, headers, body]."""
    asked = json.load(sys.stdin)
    configure_logs(Settings(_env_file=None, **asked["settings"]))
    backend = StubBackend(RuntimeError(asked["fault"]) if asked["fault"] else None)
    with decoders_on_demand(), client_of(backend, **asked["settings"]) as client:
        answers = [client.request(method, path, headers=headers) for method, path, headers in asked["requests"]]
    json.dump([[answer.status_code, dict(answer.headers), answer.text] for answer in answers], sys.stdout)
