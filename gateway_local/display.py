"""What an operator sees while Triton and the API start, run and stop."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from gateway_local.server import LOG_PREFIX
from gateway_local.server_log import LogReader

SAID = "gateway | "
"""Before each line of the commands on a terminal or in a pipe."""
REMIND_SECONDS = 10.0

Say = Callable[[str], None]


class Display(Protocol):
    """Where progress and Triton's log go."""

    def say(self, text: str) -> None:
        """A line that stays."""
        ...

    def log(self, line: str) -> None:
        """A line of Triton's log; called on a thread of its own."""
        ...

    def waiting(self, text: str) -> AbstractContextManager[object]:
        """While something is awaited, which `text` names."""
        ...


@contextmanager
def reminding(every_seconds: float, remind: Callable[[float], None]) -> Iterator[None]:
    """While the block lasts, call `remind` again and again, in a thread, with the seconds since the block began."""
    started = time.monotonic()
    over = threading.Event()

    def wait() -> None:
        while not over.wait(every_seconds):
            remind(time.monotonic() - started)

    thread = threading.Thread(target=wait, name="reminders", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Reminders:
    """Says from time to time that something is still awaited, and which models load meanwhile.

    For displays where nothing moves; `log` gets the same lines of Triton's log as theirs.
    """

    def __init__(self, say: Say) -> None:
        self._say = say
        self._reader = LogReader()
        self._lock = threading.Lock()
        self._loading: dict[str, None] = {}

    def log(self, line: str) -> None:
        """Take note of the models that begin to load, or have loaded."""
        event = self._reader.read(line.removeprefix(LOG_PREFIX))
        if event is None:
            return
        with self._lock:
            if event.kind == "loading":
                self._loading[event.text] = None
            elif event.kind == "loaded":
                self._loading.pop(event.text, None)

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Say it at once, and again after each REMIND_SECONDS."""
        self._say(text)
        with reminding(REMIND_SECONDS, lambda so_far: self._say(f"{text}: {so_far:.0f} s so far{self._told()}")):
            yield

    def _told(self) -> str:
        with self._lock:
            return f"; loading {', '.join(self._loading)}" if self._loading else ""


class Lines:
    """Every line as it comes: for log collectors, and for those who ask for all."""

    def __init__(self, say: Say, log: Say) -> None:
        self.say = say
        self._log = log
        self._reminders = Reminders(say)

    def log(self, line: str) -> None:
        """A line of Triton's log."""
        self._reminders.log(line)
        self._log(line)

    def waiting(self, text: str) -> AbstractContextManager[object]:
        """Said at once and again and again; nothing else would show that something is awaited."""
        return self._reminders.waiting(text)
