"""Servers that run as child processes: start, requests over HTTP, waiting until they are ready, and end."""

import contextlib
import http.client
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from http import HTTPStatus

from gateway_local.groups import REAPER, kill_group, signal_group

POLL_SECONDS = 0.02
LAST_RESPONSES_SECONDS = 0.3
"""Pause before a finished process is killed: its results are still on their way to the clients."""
MAX_RESPONSE_BYTES = 10_000
ANSWER_SECONDS = 5.0


class Child:
    """A program in a separate process group, so that Ctrl-C on the terminal does not reach it.

    The group ends when this process dies. After the program has ended, `start` may be called again.
    """

    name = ""
    grace_seconds = 0.0
    """Time that requests in flight have to finish when it is stopped."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False
        """Whether the whole process group has ended: its number may then be reused."""

    @property
    def alive(self) -> bool:
        """Whether the group's first process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The id of the first process, and of its session, also after it has ended; None before the first start."""
        return self._process.pid if self._process else None

    def poll(self) -> int | None:
        """The exit code of a process that has ended, negative for a signal; None while it runs or before a start."""
        return self._process.poll() if self._process else None

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        """Wait for the process to end; returns `poll`."""
        if self._process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_seconds)
        return self.poll()

    def start(self) -> None:
        """Start the process, without waiting for it."""
        raise NotImplementedError

    def ready(self) -> bool:
        """Whether the process answers after its start; Readiness checks whether it classifies images."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Whether the process still answers, after it has been ready."""
        raise NotImplementedError

    def hangs(self) -> bool:
        """Whether the process accepts connections and does not answer them, also before it is ready."""
        return False

    def has_finished(self) -> bool:
        """Whether a process that stops has answered every request, so that nothing is lost if it is killed."""
        return False

    def stop(self, grace_seconds: float | None = None) -> None:
        """Stop the process: requests in flight may finish within the grace period, then the group is killed.

        Returns when all of its processes have ended. Stopping a stopped process does nothing.
        """
        if self._process is None or self._stopped:
            return
        grace_seconds = self.grace_seconds if grace_seconds is None else grace_seconds
        if grace_seconds and self.alive:
            deadline = time.monotonic() + grace_seconds
            self._process.terminate()
            while self.alive and not self.has_finished() and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
            if self.alive and self.has_finished():
                time.sleep(LAST_RESPONSES_SECONDS)
        kill_group(self._process)
        self._stopped = True
        self._clean_up()

    def kill(self) -> None:
        """Kill all processes, also while `stop` waits; for signal handlers."""
        if self._process is not None and self._process.returncode is None:
            signal_group(self._process, signal.SIGKILL)

    def _run(self, command: Sequence[str], environment: Mapping[str, str], stdout: int | None = None) -> None:
        """Start a program; raises OSError."""
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT if stdout else None,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        REAPER.watch(self._process.pid)
        self._stopped = False

    def _clean_up(self) -> None:
        """Remove the remains of a stopped group."""


class Waited(Enum):
    """How a wait for a server ended."""

    READY = "ready"
    ENDED = "ended"
    LATE = "late"


def wait_ready(ready: Callable[[], bool], alive: Callable[[], bool], timeout_seconds: float) -> Waited:
    """Poll until a server is `ready`, is no longer `alive`, or the time is up; a slow `ready` may exceed the time."""
    deadline = time.monotonic() + timeout_seconds
    # Alive first: after the server has ended, another one may have its port.
    while alive():
        if ready():
            return Waited.READY
        if time.monotonic() > deadline:
            return Waited.LATE
        time.sleep(POLL_SECONDS)
    return Waited.ENDED


def get(host: str, port: int, path: str, *, timeout_seconds: float) -> tuple[int, bytes]:
    """The status and the first MAX_RESPONSE_BYTES of the response to a GET request.

    Raises OSError if there is no response in HTTP, and TimeoutError if it takes too long.
    """
    connection = http.client.HTTPConnection(host, port, timeout=timeout_seconds)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read(MAX_RESPONSE_BYTES)
    except http.client.HTTPException as exc:
        raise OSError(f"the answer is not HTTP: {exc!r}") from exc
    finally:
        connection.close()


def is_ok(host: str, port: int, path: str, *, timeout_seconds: float) -> bool:
    """Whether the response to a GET request is 200."""
    try:
        return get(host, port, path, timeout_seconds=timeout_seconds)[0] == HTTPStatus.OK
    except OSError:
        return False


def wait_answering(
    process: "subprocess.Popen[bytes]", host: str, port: int, path: str, *, timeout_seconds: float
) -> str | None:
    """Wait until a child process answers 200 to a GET request; returns the reason if it does not, else None."""
    match wait_ready(
        lambda: is_ok(host, port, path, timeout_seconds=ANSWER_SECONDS),
        lambda: process.poll() is None,
        timeout_seconds,
    ):
        case Waited.ENDED:
            return f"ended with code {process.returncode}"
        case Waited.LATE:
            return f"was not ready after {timeout_seconds:g} s"
    return None


def end(process: "subprocess.Popen[bytes]", grace_seconds: float) -> None:
    """Send SIGTERM to a process, and kill it if it has not ended after the grace period; returns when it has ended."""
    process.terminate()
    try:
        process.wait(grace_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
