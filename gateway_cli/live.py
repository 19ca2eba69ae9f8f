"""The terminal display of `gateway up`: a line for each stage and model with its time, and a spinner."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway_local.console import PlainConsole, plain
from gateway_local.display import STATUS_PREFIX, reminding
from gateway_local.server import LOG_PREFIX
from gateway_local.server_log import TritonLogReader

MAX_LOG_BYTES = 32 * 2**20
TICK_SECONDS = 0.5


class LiveDisplay:
    """Writes Triton's log to a file and shows the important events: models that are ready, and errors."""

    def __init__(self, console: PlainConsole, log_file: Path) -> None:
        self._console = console
        self._reader = TritonLogReader()
        self._lock = threading.Lock()
        self._started: dict[str, float] = {}
        self.log_file = log_file
        log_file.parent.mkdir(parents=True, exist_ok=True)
        self._file = log_file.open("w", encoding="utf-8")
        self._written = 0

    def say(self, text: str) -> None:
        """Print lines permanently; lines after the first are indented."""
        first, *others = text.split("\n")
        for line in (f"{STATUS_PREFIX}{first}", *(f"  {other}" for other in others)):
            self._console.print(line, soft_wrap=True)

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
        """Show a spinner with the elapsed time."""
        with (
            self._console.status(plain(text)) as status,
            reminding(TICK_SECONDS, lambda so_far: status.update(plain(f"{text} · {so_far:.0f} s"))),
        ):
            yield

    def close(self) -> None:
        """Close the log file."""
        with self._lock, contextlib.suppress(OSError):  # a full disk loses the last lines
            self._file.close()

    def _keep(self, line: str) -> None:
        with self._lock, contextlib.suppress(OSError):  # a full disk must not stop the reader of Triton's log
            if self._file.closed:
                return
            if self._written > MAX_LOG_BYTES:
                # Start over: only recent lines are useful, and a service may run for months.
                self._file.seek(0)
                self._file.truncate()
                self._written = 0
            self._written += self._file.write(f"{line}\n")
            self._file.flush()


def log_path(port: int) -> Path:
    """The log file of Triton for the API on a port, in $XDG_STATE_HOME, else ~/.local/state."""
    root = os.environ.get("XDG_STATE_HOME", "")
    state = Path(root) if Path(root).is_absolute() else Path.home() / ".local" / "state"
    return state / "triton-image-gateway" / f"triton-{port}.log"
