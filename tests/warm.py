"""Runs programs in forks of a process that has already imported the gateway, which takes seconds of processor time.

As with `python -c`, each program is a separate process, with its own modules and logging setup. Tests of the start of a
process start it as users do instead.

Run as a program (`python -m tests.warm DESCRIPTOR`), this module is the process that is forked.
"""

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

NEEDED = (
    "tests.services",
    "gateway.command_line.main",
    "gateway.app",
    "gateway.worker",
    "gateway.triton.client",
    "gateway_models.predictions.writer",
    "uvicorn.loops.uvloop",
)
_MAX_BYTES = 1_000_000


class Process:
    """A fork that runs a program: what tests use of `subprocess.Popen`."""

    def __init__(self, server: "_Server", pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._handle = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code; raises subprocess.TimeoutExpired."""
        if (code := self._ended(timeout)) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._handle, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._handle, select.POLLIN)
            if poll.poll(None if timeout is None else timeout * 1000):
                self.returncode = self._server.ask({"ended": self.pid})
                os.close(self._handle)
        return self.returncode


def start(
    code: str,
    arguments: Sequence[str] = (),
    *,
    environment: Mapping[str, str],
    stdin: int | None = None,
    stdout: int = 1,
    stderr: int = 2,
) -> Process:
    """Start `python -c CODE ARGUMENTS…` in the project's folder; the streams are file descriptors."""
    job = {"code": code, "argv": ["-c", *arguments], "environment": dict(environment)}
    with contextlib.ExitStack() as stack:
        given = stack.enter_context(open(os.devnull)).fileno() if stdin is None else stdin  # noqa: PTH123
        server = _server()
        return Process(server, server.ask(job, [given, stdout, stderr]))


def run(
    code: str,
    arguments: Sequence[str] = (),
    *,
    environment: Mapping[str, str],
    given: str = "",
    stderr: int | None = None,
    timeout_seconds: float = 60,
) -> "subprocess.CompletedProcess[str]":
    """Run `python -c CODE ARGUMENTS…`, with `given` on its standard input.

    `stderr` is a file descriptor that replaces the result's stderr. Raises subprocess.TimeoutExpired.
    """
    with (
        tempfile.TemporaryFile("w+") as stdin,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        stdin.write(given)
        stdin.seek(0)
        process = start(
            code,
            arguments,
            environment=environment,
            stdin=stdin.fileno(),
            stdout=out.fileno(),
            stderr=err.fileno() if stderr is None else stderr,
        )
        try:
            returncode = process.wait(timeout_seconds)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(["python", "-c"], returncode, out.read(), err.read())


class _Server:
    """The process that is forked. Its answers are numbers: the id of a new fork, or the exit code of one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_BYTES)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm", str(theirs.fileno())],
                cwd=Path(__file__).resolve().parents[1],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        atexit.register(self.close)

    def ask(self, message: Mapping[str, object], handles: Sequence[int] = ()) -> int:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(message).encode()], handles)
            answer = self._socket.recv(100)
        assert answer, "the warm process has ended"
        return int(answer)

    def close(self) -> None:
        """Kill the process and its forks, which are in its session."""
        self._socket.close()
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@functools.cache
def _server() -> _Server:
    return _Server()


def _serve(connection: socket.socket) -> str:
    """Answer each message until the connection is closed; in a fork, return its program."""
    while True:
        message, handles, *_ = socket.recv_fds(connection, _MAX_BYTES, 3)
        if not message:  # the test process has ended
            os.killpg(0, signal.SIGKILL)
        job = json.loads(message)
        if "ended" in job:
            _, status = os.waitpid(job["ended"], 0)
            connection.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        if child := os.fork():
            for handle in handles:
                os.close(handle)
            connection.send(str(child).encode())
            continue
        connection.close()
        for number, handle in enumerate(handles):
            os.dup2(handle, number)
            os.close(handle)
        os.environ.clear()
        os.environ.update(job["environment"])
        sys.argv = job["argv"]
        return str(job["code"])


if __name__ == "__main__":
    for name in NEEDED:
        __import__(name)
    program = _serve(socket.socket(fileno=int(sys.argv[1])))
    exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102  # the program that the test passed
