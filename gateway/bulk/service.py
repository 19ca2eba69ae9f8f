"""A service for one run: `gateway up` on a free port, ended with the run."""

import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.embedded import launch
from gateway.errors import UserError

START_SECONDS = 900.0
"""The first start fetches Triton and exports the default model."""
STOP_SECONDS = 60.0
POLL_SECONDS = 0.2
HOST = "127.0.0.1"


class ServiceFailed(UserError):
    """The service did not start; the message has the end of its log."""


@contextmanager
def own_service(model_repository: Path, say: Callable[[str], None]) -> Iterator[str]:
    """The URL of a service of this run's own, when it is ready; raises ServiceFailed."""
    port = _free_port()
    command = ["gateway", "up", "--host", HOST, "--port", str(port), "--model-repository", str(model_repository)]
    say(f"starting a service for this run on http://{HOST}:{port}; --url takes a running one")
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
            yield f"http://{HOST}:{port}"
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_ready(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServiceFailed(f"the service ended with code {process.returncode}:\n{_tail(log)}")
        connection = http.client.HTTPConnection(HOST, port, timeout=5.0)
        try:
            connection.request("GET", "/health/ready")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        except (OSError, http.client.HTTPException):
            pass  # it does not listen yet
        finally:
            connection.close()
        time.sleep(POLL_SECONDS)
    raise ServiceFailed(f"the service was not ready after {START_SECONDS:g} s:\n{_tail(log)}")


def _tail(log: Path) -> str:
    with log.open(errors="replace") as lines:
        return "".join(deque(lines, maxlen=20))


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])
