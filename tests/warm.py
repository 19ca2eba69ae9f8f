"""Runs programs in forks of a process that has already imported the gateway, which takes a second.

As with `python -c`, each program is a separate process, with its own modules and logging setup. Tests of the start of a
process start it as users do instead.

Run as a program (`python -m tests.warm DESCRIPTOR`), this module is the process that is forked.
"""

import atexit
import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

from tests.processes import PROJECT

NEEDED = ("tests.gateway.api.stub", "gateway_cli.main")
_MAX_BYTES = 1_000_000


def run(
    code: str,
    arguments: Sequence[str] = (),
    *,
    environment: Mapping[str, str],
    given: str = "",
    stderr: int | None = None,
    timeout_seconds: float = 60,
) -> "subprocess.CompletedProcess[str]":
    """Run `python -c CODE ARGUMENTS…` in the project's folder, with `given` on its standard input.

    `stderr` is a file descriptor that replaces the result's stderr. Raises TimeoutError.
    """
    with (
        tempfile.TemporaryFile("w+") as stdin,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        stdin.write(given)
        stdin.seek(0)
        job = {"code": code, "argv": ["-c", *arguments], "environment": dict(environment)}
        handles = [stdin.fileno(), out.fileno(), err.fileno() if stderr is None else stderr]
        returncode = _server().run(json.dumps(job).encode(), handles, timeout_seconds)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(["python", "-c"], returncode, out.read(), err.read())


class _Server:
    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_BYTES)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm", str(theirs.fileno())],
                cwd=PROJECT,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        atexit.register(self.close)

    def run(self, message: bytes, handles: list[int], timeout_seconds: float) -> int:
        self._socket.settimeout(timeout_seconds)
        try:
            socket.send_fds(self._socket, [message], handles)
            answer = self._socket.recv(100)
        except TimeoutError:
            self.close()
            raise
        assert answer, "the warm process has ended"
        return int(answer)

    def close(self) -> None:
        """Kill the process and its forks, which are in its session."""
        self._socket.close()
        if self._process.poll() is None:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        _server.cache_clear()


@functools.cache
def _server() -> _Server:
    return _Server()


def _serve(connection: socket.socket) -> str:
    """Answer each program with its fork's exit code, until the connection is closed; in a fork, return the program."""
    while True:
        message, handles, *_ = socket.recv_fds(connection, _MAX_BYTES, 3)
        if not message:
            sys.exit()
        if child := os.fork():
            for handle in handles:
                os.close(handle)
            _, status = os.waitpid(child, 0)
            connection.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        connection.close()
        job = json.loads(message)
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
