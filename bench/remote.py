"""Objects in a separate process, so that measuring one does not load the process of another."""

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any


class RemoteFailed(Exception):
    """A call in another process failed; the message has that process's traceback."""


class Remote:
    """`factory(*arguments)` made in a new process, whose methods are called from here one at a time."""

    def __init__(self, factory: Callable[..., object], *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, factory, arguments), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process.pid is not None
        return self._process.pid

    def start(self, method: str, *arguments: object) -> None:
        """Start a call; `result` waits for it."""
        self._connection.send((method, arguments))

    def result(self) -> Any:  # noqa: ANN401  # whatever the method returns
        """The return value of the started call; raises RemoteFailed."""
        try:
            ok, value = self._connection.recv()
        except EOFError as exc:
            raise RemoteFailed(f"process {self.pid} ended in the middle of a call") from exc
        if not ok:
            raise RemoteFailed(value)
        return value

    def call(self, method: str, *arguments: object) -> Any:  # noqa: ANN401
        """Call a method and wait for its return value; raises RemoteFailed."""
        self.start(method, *arguments)
        return self.result()

    def __enter__(self) -> "Remote":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        self._process.join(5)
        self._process.kill()
        self._process.join()


def _serve(connection: Connection, factory: Callable[..., object], arguments: tuple[object, ...]) -> None:
    made: object | None = None
    while True:
        try:
            method, given = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            made = factory(*arguments) if made is None else made
            answer = (True, getattr(made, method)(*given))
        except Exception:
            answer = (False, traceback.format_exc())
        connection.send(answer)
