"""Threads for blocking reads. They are daemons: a read that never returns does not keep the program running."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class Readers(Executor):
    """An executor like ThreadPoolExecutor, but the interpreter does not wait for its threads at exit."""

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._threads = 0
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._pending: set[Future[object]] = set()

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Schedule a call in one of the threads."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = function(*args, **kwargs)
            except BaseException as exc:  # raised by `future.result()`
                future.set_exception(exc)
            else:
                future.set_result(result)

        self._pending.add(future)  # type: ignore[arg-type]
        future.add_done_callback(self._pending.discard)
        self._work.put(work)
        if self._threads < self._max_threads:
            self._threads += 1
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = True) -> None:  # noqa: ARG002, FBT001, FBT002
        """Stop each thread after its current call; calls that have not begun are cancelled."""
        if cancel_futures:
            for future in list(self._pending):
                future.cancel()
        for _ in range(self._threads):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work
