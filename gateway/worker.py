"""A process that serves the API, or that reads the settings for the processes that will serve it.

python -m gateway.worker LISTENER PIPE SUPERVISOR   a worker: two descriptors, and the id of the process that started it
python -m gateway.worker                            the API without a supervisor
python -m gateway.worker --plan                     print what workers would run with now, or why not, in JSON
"""

import json
import os
import signal
import socket
import sys

import gateway.plain_structlog  # noqa: F401
from gateway.environment import load_settings
from gateway.errors import UserError
from gateway.logs import configure_logs
from gateway.plugin_loading import hooks
from gateway.server.serve import plan_to_serve
from gateway.server.server import run
from gateway.server.workers import Plan, die_with

APP = "gateway.app:create_app_from_environment"


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn stops in order and then raises the signal again: an ordered stop is not a failure, so exit with 0.
        signal.signal(number, lambda *_: None)
    if len(sys.argv) > 1:
        listener, pipe, supervisor = map(int, sys.argv[1:])
        die_with(supervisor)
        run(APP, load_settings(), socket.socket(fileno=listener), pipe)
    else:
        os.environ.update(_plan().variables)
        run(APP, load_settings())


def _plan() -> Plan:
    settings = load_settings()
    hooks(settings).check(settings)
    configure_logs(settings)
    return plan_to_serve(settings)


def print_plan() -> None:
    """Print the plan of `gateway serve`, or the reason against one."""
    try:
        answer: object = _plan()
    except UserError as exc:
        answer = "; ".join(exc.args)
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    print_plan() if sys.argv[1:] == ["--plan"] else main()
