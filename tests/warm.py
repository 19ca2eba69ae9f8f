"""Programs in forks of a process that has imported the gateway: each would take a second to import it.

As with `python -c`, each is a process of its own: its modules and its set-up of logs are nobody else's. A process whose
start is what a test is about is started as users start it.

As a program itself (`python -m tests.warm DESCRIPTOR`) this module is the process that is forked.
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
    """What becomes of `python -c CODE ARGUMENTS…` in the project's folder, with `given` on its standard input.

    `stderr` is a file's number, in whose place the result has what was written to it. Raises TimeoutError.
    """
    with (
        tempfile.TemporaryFile("w+") as stdin,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        stdin.write(given)
        stdin.seek(0)
        code_and_more = {"code": code, "argv": ["-c", *arguments], "environment": dict(environment)}
        handles = [stdin.fileno(), out.fileno(), err.fileno() if stderr is None else stderr]
        returncode = _server().ask(json.dumps(code_and_more).encode(), handles, timeout_seconds)
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

    def ask(self, message: bytes, handles: list[int], timeout_seconds: float) -> int:
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
        """End it; it has its own session, so what it was forked for ends as well."""
        self._socket.close()
        if self._process.poll() is None:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        _server.cache_clear()


@functools.cache
def _server() -> _Server:
    return _Server()


def _serve(connection: socket.socket) -> str:
    """Answer each program with what its fork exits with, until the connection is closed; a fork returns its code."""
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
        asked = json.loads(message)
        for number, handle in enumerate(handles):
            os.dup2(handle, number)
            os.close(handle)
        os.environ.clear()
        os.environ.update(asked["environment"])
        sys.argv = asked["argv"]
        return str(asked["code"])


if __name__ == "__main__":
    for name in NEEDED:
        __import__(name)
    program = _serve(socket.socket(fileno=int(sys.argv[1])))
    exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102  # what the test is about
