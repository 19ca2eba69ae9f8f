"""A service for one run: `gateway up` on a free port, ended with the run."""

import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.children import Waited, end, is_ok, wait_ready
from gateway.embedded import launch
from gateway.errors import UserError
from gateway.hosts import LOOPBACK, free_port

START_SECONDS = 900.0
"""The first start fetches Triton and exports the default model."""
STOP_SECONDS = 60.0
ANSWER_SECONDS = 5.0


class ServiceFailed(UserError):
    """The service did not start; the message has the end of its log."""


@contextmanager
def own_service(model_repository: Path, say: Callable[[str], None]) -> Iterator[str]:
    """The URL of a service of this run's own, when it is ready; raises ServiceFailed."""
    port = free_port()
    command = ["gateway", "up", "--host", LOOPBACK, "--port", str(port), "--model-repository", str(model_repository)]
    say(f"starting a service for this run on http://{LOOPBACK}:{port}; use --url for a running one")
    with tempfile.NamedTemporaryFile("w+", prefix="gateway-classify-", suffix=".log") as log:
        # In a session of its own, so that Ctrl-C reaches this process alone; it ends with this process in any case.
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), sys.executable, "-m", *command],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            started = time.monotonic()
            _wait_ready(process, port, Path(log.name))
            say(f"the service is ready after {time.monotonic() - started:.0f} s")
            yield f"http://{LOOPBACK}:{port}"
        finally:
            end(process, STOP_SECONDS)


def _wait_ready(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    match wait_ready(
        lambda: is_ok(LOOPBACK, port, "/health/ready", timeout_seconds=ANSWER_SECONDS),
        lambda: process.poll() is None,
        START_SECONDS,
    ):
        case Waited.ENDED:
            raise ServiceFailed(f"the service ended with code {process.returncode}:\n{_tail(log)}")
        case Waited.LATE:
            raise ServiceFailed(f"the service was not ready after {START_SECONDS:g} s:\n{_tail(log)}")


def _tail(log: Path) -> str:
    with log.open(errors="replace") as lines:
        return "".join(deque(lines, maxlen=20))
