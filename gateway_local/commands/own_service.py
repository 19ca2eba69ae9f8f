"""A temporary service for one run: `gateway up` on a free port, stopped with the run."""

import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.errors import UserError
from gateway.values.variables import API_KEY
from gateway_local.children import end, wait_answering
from gateway_local.groups import REAPER
from gateway_local.hosts import LOOPBACK, free_port

START_SECONDS = 900.0
"""The first start fetches Triton and exports the default model."""
STOP_SECONDS = 60.0


class ServiceFailed(UserError):
    """The service did not start; the message has the end of its log."""


@contextmanager
def own_service(model_repository: Path, print_status: Callable[[str], None]) -> Iterator[str]:
    """Start a service, wait until it is ready, and yield its URL; raises ServiceFailed."""
    port = free_port()
    options = ["--host", LOOPBACK, "--port", str(port), "--model-repository", str(model_repository)]
    print_status(f"starting a service for this run on http://{LOOPBACK}:{port}; use --gateway for a running one")
    with tempfile.NamedTemporaryFile("w+", prefix="gateway-classify-", suffix=".log") as log:
        # In a new session, so that Ctrl-C reaches only this process; the service ends with this process.
        command = [sys.executable, "-m", "gateway", "up", *options]
        variables = {name: value for name, value in os.environ.items() if name != API_KEY}
        process = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, env=variables
        )
        REAPER.watch(process.pid)
        try:
            started = time.monotonic()
            if fault := wait_answering(process, LOOPBACK, port, "/health/ready", timeout_seconds=START_SECONDS):
                raise ServiceFailed(f"the service {fault}:", *_tail(Path(log.name)))
            print_status(f"the service is ready after {time.monotonic() - started:.0f} s")
            yield f"http://{LOOPBACK}:{port}"
        finally:
            end(process, STOP_SECONDS)
            REAPER.forget(process.pid)


def _tail(log: Path) -> list[str]:
    with log.open(errors="replace") as lines:
        return [line.rstrip("\n") for line in deque(lines, maxlen=20)]
