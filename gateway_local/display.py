"""Display for the operator while Triton and the API start, run and stop."""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from gateway.machine.service_record import state_folder
from gateway_client.visible import visible
from gateway_local.server import LOG_PREFIX
from gateway_local.server_log import TritonLogReader, level_and_text

STATUS_PREFIX = "gateway | "
"""Before each line of the commands on a terminal or in a pipe."""
REMIND_SECONDS = 10.0
MAX_LOG_BYTES = 32 * 2**20

Say = Callable[[str], None]


class Display:
    """Shows progress and Triton's log on stderr, line by line: as text, or as events in JSON.

    With a `log_file`, Triton's log goes there, and only models that are ready and errors are shown. Triton's wide
    `tables` may be left out. A step in progress is reported again every REMIND_SECONDS.
    """

    def __init__(self, *, as_json: bool = False, tables: bool = True, log_file: Path | None = None) -> None:
        self._as_json = as_json
        self._tables = tables
        self._reader = TritonLogReader()
        self._lock = threading.Lock()
        self._loading: dict[str, float] = {}
        """The models that are loading, with the time.monotonic() of their begin."""
        self._written = 0
        self.log_file: TextIO | None = None
        if log_file:
            log_file.parent.mkdir(parents=True, exist_ok=True)
            self.log_file = log_file.open("w", encoding="utf-8")

    def say(self, text: str) -> None:
        """Show a line of the command itself."""
        if self._as_json:
            _event("info", "up", text)
        else:
            _write(f"{STATUS_PREFIX}{visible(text)}")

    def log(self, line: str) -> None:
        """Take a line of Triton's log; called on another thread."""
        line = line.removeprefix(LOG_PREFIX)
        notable = self._notable(line)
        if self.log_file:
            self._keep(line, self.log_file)
            if notable:
                self.say(notable)
        elif self._as_json:
            level, text = level_and_text(line)
            if text:
                _event(level, "triton", text)
        elif self._tables or not line.startswith(("+--", "| ")):
            _write(visible(f"{LOG_PREFIX}{line}"))

    def _notable(self, line: str) -> str:
        """The text about a model that is ready, or an error, in a line of the log; records which models are loading."""
        event = self._reader.read(line)
        if event is None:
            return ""
        if event.kind == "error":
            return f"{LOG_PREFIX}{event.text}"
        with self._lock:
            if event.kind == "loading":
                self._loading[event.text] = time.monotonic()
                return ""
            started = self._loading.pop(event.text, None)
        took = f" {time.monotonic() - started:5.1f} s" if started is not None else ""
        return f"  model {event.text:<32}{took}"

    def _keep(self, line: str, file: TextIO) -> None:
        with contextlib.suppress(OSError):  # a full disk must not stop the reader of Triton's log
            if self._written > MAX_LOG_BYTES:
                # Start over: only recent lines are useful, and a service may run for months.
                file.seek(0)
                file.truncate()
                self._written = 0
            self._written += file.write(f"{line}\n")
            file.flush()

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Report the step named `text`, and again periodically with the loading models, until the block ends."""
        self.say(text)
        started, over = time.monotonic(), threading.Event()

        def remind() -> None:
            while not over.wait(REMIND_SECONDS):
                with self._lock:
                    loading = f"; loading {', '.join(self._loading)}" if self._loading else ""
                self.say(f"{text}: {time.monotonic() - started:.0f} s so far{loading}")

        thread = threading.Thread(target=remind, name="reminders", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def log_path(port: int) -> Path:
    """The log file of Triton for the API on a port, in $XDG_STATE_HOME, else ~/.local/state."""
    return state_folder() / f"triton-{port}.log"


def _event(level: str, event: str, message: str) -> None:
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    _write(json.dumps({"timestamp": now, "level": level, "event": event, "message": message}))


def _write(line: str) -> None:
    sys.stderr.write(f"{line}\n")  # in one call: several threads write
    sys.stderr.flush()
