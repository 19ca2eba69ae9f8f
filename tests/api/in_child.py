"""Requests to an application in a process of its own, whose logs are set up as in production.

    python -m tests.api.in_child < {"settings": {…}, "fault": "boom" or null, "requests": [[method, path, headers], …]}

Prints each answer as [status, headers, body]. structlog keeps its first set-up for ever, so the suite's process cannot
try several.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from gateway.logs import configure_logs
from gateway.settings import Settings
from tests.api.stub import StubBackend, client_of
from tests.processes import PROJECT, environment

Ask = tuple[str, str, dict[str, str]]


def logged(requests: Sequence[Ask], *, fault: str | None = None, **settings: Any) -> tuple[list[list[Any]], str]:
    """The answers, and all that was logged."""
    completed = subprocess.run(
        [sys.executable, "-m", "tests.api.in_child"],
        input=json.dumps({"settings": settings, "fault": fault, "requests": requests}, default=str),
        env=environment(),
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout), completed.stderr


def _main() -> None:
    asked = json.load(sys.stdin)
    configure_logs(Settings(_env_file=None, **asked["settings"]))
    backend = StubBackend(RuntimeError(asked["fault"]) if asked["fault"] else None)
    with client_of(backend, **asked["settings"]) as client:
        answers = [client.request(method, path, headers=headers) for method, path, headers in asked["requests"]]
    json.dump([[answer.status_code, dict(answer.headers), answer.text] for answer in answers], sys.stdout)


if __name__ == "__main__":
    _main()
