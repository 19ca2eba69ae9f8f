"""Display for the operator while Triton and the API start, run and stop."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Protocol

from gateway_client.visible import visible
from gateway_local.server import LOG_PREFIX
from gateway_local.server_log import TritonLogReader, level_and_text

STATUS_PREFIX = "gateway | "
"""Before each line of the commands on a terminal or in a pipe."""
REMIND_SECONDS = 10.0

Say = Callable[[str], None]


class Display(Protocol):
    """Shows progress and Triton's log."""

    def say(self, text: str) -> None:
        """Show a line that stays on the screen."""
        ...

    def log(self, line: str) -> None:
        """Show a line of Triton's log; called on another thread."""
        ...

    def waiting(self, text: str) -> AbstractContextManager[object]:
        """Show, for as long as the block lasts, that the step named `text` is in progress."""
        ...


@contextmanager
def reminding(every_seconds: float, remind: Callable[[float], None]) -> Iterator[None]:
    """Until the block ends, call `remind` periodically, in a thread, with the seconds since the block began."""
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
    """Reports every REMIND_SECONDS that a step is still in progress, and which models are loading.

    For displays without a progress indicator; pass each line of Triton's log to `log`.
    """

    def __init__(self, say: Say) -> None:
        self._say = say
        self._reader = TritonLogReader()
        self._lock = threading.Lock()
        self._loading: dict[str, None] = {}

    def log(self, line: str) -> None:
        """Record which models begin to load, and which have loaded."""
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
        """Report the step, and again every REMIND_SECONDS."""
        self._say(text)
        with reminding(
            REMIND_SECONDS, lambda elapsed: self._say(f"{text}: {elapsed:.0f} s so far{self._loading_text()}")
        ):
            yield

    def _loading_text(self) -> str:
        with self._lock:
            return f"; loading {', '.join(self._loading)}" if self._loading else ""


class Lines:
    """Passes on every line unchanged: for log collectors, and for `--verbose`. Triton's wide tables may be left out."""

    def __init__(self, say: Say | None = None, log: Say | None = None, *, tables: bool = True) -> None:
        self.say = say or (lambda text: _write(f"{STATUS_PREFIX}{visible(text)}"))
        self._log = log or (lambda line: _write(visible(line)))
        self._tables = tables
        self._reminders = Reminders(self.say)

    def log(self, line: str) -> None:
        """Pass on a line of Triton's log."""
        self._reminders.log(line)
        if self._tables or not line.removeprefix(LOG_PREFIX).startswith(("+--", "| ")):
            self._log(line)

    def waiting(self, text: str) -> AbstractContextManager[object]:
        """Report the step now and periodically; nothing else shows that it is in progress."""
        return self._reminders.waiting(text)


class JsonLines:
    """A Display that writes one event per line to stderr."""

    def __init__(self) -> None:
        self._reminders = Reminders(self.say)

    def say(self, text: str) -> None:
        """Write a line of `gateway up` itself."""
        _event("info", "up", text)

    def log(self, line: str) -> None:
        """Write a line of Triton's log; its tables are written line by line."""
        self._reminders.log(line)
        level, text = level_and_text(line.removeprefix(LOG_PREFIX))
        if text:
            _event(level, "triton", text)

    def waiting(self, text: str) -> AbstractContextManager[object]:
        """Report the step now and periodically."""
        return self._reminders.waiting(text)


def _event(level: str, event: str, message: str) -> None:
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    _write(json.dumps({"timestamp": now, "level": level, "event": event, "message": message}))


def _write(line: str) -> None:
    sys.stderr.write(f"{line}\n")  # in one call: several threads write
    sys.stderr.flush()
