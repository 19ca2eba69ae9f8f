"""The terminal display of `gateway up`: a line for each stage and model with its time, and the step in progress."""

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from gateway.machine.service_record import state_folder
from gateway_client.visible import visible
from gateway_local.display import STATUS_PREFIX, reminding
from gateway_local.server import LOG_PREFIX
from gateway_local.server_log import TritonLogReader

MAX_LOG_BYTES = 32 * 2**20
TICK_SECONDS = 0.5
CLEAR = "\r\x1b[K"
"""Return to the start of the line and erase it (ECMA-48)."""


class LiveDisplay:
    """Writes Triton's log to a file and shows the important events: models that are ready, and errors."""

    def __init__(self, log_file: Path, screen: TextIO | None = None) -> None:
        self._screen = screen or sys.stderr
        self._reader = TritonLogReader()
        self._lock = threading.RLock()
        self._started: dict[str, float] = {}
        self._step = ""
        """The line of the step in progress."""
        log_file.parent.mkdir(parents=True, exist_ok=True)
        self.log_file = log_file.open("w", encoding="utf-8")
        self._written = 0

    def say(self, text: str) -> None:
        """Print lines permanently; lines after the first are indented."""
        first, *others = text.split("\n")
        lines = (f"{STATUS_PREFIX}{first}", *(f"  {other}" for other in others))
        with self._lock:
            self._screen.write(CLEAR * bool(self._step) + "".join(f"{visible(line)}\n" for line in lines) + self._step)
            self._screen.flush()

    def log(self, line: str) -> None:
        """Write a log line to the file; show lines about models and errors on the terminal as well."""
        line = line.removeprefix(LOG_PREFIX)
        self._keep(line)
        event = self._reader.read(line)
        if event is None:
            return
        if event.kind == "loading":
            self._started.setdefault(event.text, time.monotonic())
        elif event.kind == "loaded":
            started = self._started.pop(event.text, None)
            took = f" {time.monotonic() - started:5.1f} s" if started is not None else ""
            self.say(f"  model {event.text:<32}{took}")
        else:
            self.say(f"triton | {event.text}")

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show the step with the elapsed time."""

        def show(so_far: float) -> None:
            self._show(f"{visible(text)} · {so_far:.0f} s")

        show(0)
        try:
            with reminding(TICK_SECONDS, show):
                yield
        finally:
            self._show("")

    def _show(self, step: str) -> None:
        with self._lock:
            self._step = step[: shutil.get_terminal_size().columns - 1]
            self._screen.write(CLEAR + self._step)
            self._screen.flush()

    def _keep(self, line: str) -> None:
        with self._lock, contextlib.suppress(OSError):  # a full disk must not stop the reader of Triton's log
            if self._written > MAX_LOG_BYTES:
                # Start over: only recent lines are useful, and a service may run for months.
                self.log_file.seek(0)
                self.log_file.truncate()
                self._written = 0
            self._written += self.log_file.write(f"{line}\n")
            self.log_file.flush()


def log_path(port: int) -> Path:
    """The log file of Triton for the API on a port, in $XDG_STATE_HOME, else ~/.local/state."""
    return state_folder() / f"triton-{port}.log"
