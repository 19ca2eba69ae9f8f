"""Objects in a separate process, so that measuring one does not load the process of another."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from types import TracebackType
from typing import Any

_made: object | None = None


class Remote:
    """`factory(*arguments)`, made in a new process on the first call of one of its methods.

    A call raises the method's exception, or BrokenProcessPool if the process ends. Ctrl-C reaches only the process that
    made the object: an exception there ends the other process, even during a call.
    """

    def __init__(self, factory: Callable[..., object], *arguments: object) -> None:
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self._make = factory, arguments
        # The process inherits the mask, also while it starts.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            started = self._pool.submit(os.getpid)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self.pid: int = started.result()

    def start(self, method: str, *arguments: object) -> Future[Any]:
        """Start a call; the future has its return value."""
        return self._pool.submit(_call, self._make, method, arguments)

    def call(self, method: str, *arguments: object) -> Any:  # noqa: ANN401  # the method's result
        """Call a method and wait for its return value."""
        return self.start(method, *arguments).result()

    def __enter__(self) -> "Remote":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            os.kill(self.pid, signal.SIGKILL)
        self._pool.shutdown()


def _call(make: tuple[Callable[..., object], tuple[object, ...]], method: str, arguments: tuple[object, ...]) -> object:
    global _made  # the process's only object
    if _made is None:
        factory, given = make
        _made = factory(*given)
    return getattr(_made, method)(*arguments)
