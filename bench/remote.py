"""Objects in a separate process, so that measuring one does not load the process of another."""

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from types import TracebackType
from typing import Any

_made: object | None = None


class Remote:
    """`factory(*arguments)`, made in a new process on the first call of one of its methods.

    A call raises what the method raises, or BrokenProcessPool if the process ends.
    """

    def __init__(self, factory: Callable[..., object], *arguments: object) -> None:
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self._make = factory, arguments
        self.pid: int = self._pool.submit(os.getpid).result()

    def start(self, method: str, *arguments: object) -> Future[Any]:
        """Start a call; the future has its return value."""
        return self._pool.submit(_call, self._make, method, arguments)

    def call(self, method: str, *arguments: object) -> Any:  # noqa: ANN401  # whatever the method returns
        """Call a method and wait for its return value."""
        return self.start(method, *arguments).result()

    def __enter__(self) -> "Remote":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()


def _call(make: tuple[Callable[..., object], tuple[object, ...]], method: str, arguments: tuple[object, ...]) -> object:
    global _made  # the process's only object
    if _made is None:
        factory, given = make
        _made = factory(*given)
    return getattr(_made, method)(*arguments)
