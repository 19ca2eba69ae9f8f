"""A process that serves the API, or that reads the settings for the processes that will serve it.

python -m gateway.worker LISTENER PIPE SUPERVISOR   a worker: two descriptors, and the id of its supervisor.
                                                    Standard input has its variables, in JSON
python -m gateway.worker                            the API without a supervisor
python -m gateway.worker --plan                     print what workers would run with now, or why not, in JSON
"""

import json
import os
import signal
import socket
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import gateway.plain_structlog  # noqa: F401
from gateway.server.workers import die_with

if TYPE_CHECKING:
    from gateway.server.workers import Plan

APP = "gateway.app:create_app_from_environment"
FIRST = ("uvicorn", "fastapi", "pydantic_settings", "numpy", "tritonclient.grpc", "opentelemetry.trace")
"""Packages that read no variables of ours: they are imported while `gateway up` still computes these."""


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn stops in order and then raises the signal again: an ordered stop is not a failure, so exit with 0.
        signal.signal(number, lambda *_: None)
    if len(sys.argv) > 1:
        listener, pipe, supervisor = map(int, sys.argv[1:])
        die_with(supervisor)
        for name in FIRST:
            import_module(name)
        variables = sys.stdin.read()
        if not variables:  # the supervisor's start has failed
            return
        os.environ.update(json.loads(variables))
        _serve(socket.socket(fileno=listener), pipe)
    else:
        os.environ.update(_plan().variables)
        _serve()


def _serve(*arguments: Any) -> None:  # noqa: ANN401  # of `run`
    from gateway.environment import load_settings
    from gateway.server.server import run

    run(APP, load_settings(), *arguments)


def _plan() -> "Plan":
    from gateway.environment import load_settings
    from gateway.logs import configure_logs
    from gateway.plugin_loading import hooks
    from gateway.server.serve import plan_to_serve

    settings = load_settings()
    hooks(settings).check(settings)
    configure_logs(settings)
    return plan_to_serve(settings)


def print_plan() -> None:
    """Print the plan of `gateway serve`, or the reason against one."""
    from gateway.errors import UserError

    try:
        answer: object = _plan()
    except UserError as exc:
        answer = "; ".join(exc.args)
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    print_plan() if sys.argv[1:] == ["--plan"] else main()
