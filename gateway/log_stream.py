"""A stream for log lines that survives a full disk; standard library only, for the supervisor of `gateway up`."""

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO


class LogStream:
    """A stream for log lines. A line that cannot be written is dropped and counted, and no exception is raised.

    A full disk or a closed pipe must not stop the program that logs. `describe` returns the line that reports how many
    lines were lost and why; it is written before the next line that can be written.
    """

    def __init__(self, stream: TextIO, describe: Callable[[int, str], str]) -> None:
        # Of two nested ones, only the inner one would notice lost lines.
        self._stream: TextIO = stream._stream if isinstance(stream, LogStream) else stream
        self._describe = describe
        self._lost = 0
        self._reason = ""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        """Write and flush a text, usually whole lines."""
        with self._lock:
            try:
                if self._lost:
                    self._stream.flush()
                    self._stream.write(self._describe(self._lost, self._reason))
                self._stream.write(text)
                self._stream.flush()
                self._lost = 0
            except (OSError, ValueError) as exc:  # ValueError: it is closed
                self._lost += text.count("\n")
                self._reason = str(exc)
        return len(text)

    def flush(self) -> None:
        """Do nothing: each write is flushed."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # the stream's isatty, encoding, fileno
        return getattr(self._stream, name)


def lost_as_text(count: int, reason: str) -> str:
    """The line that reports lost log lines, as text."""
    return f"gateway | {count} line{'s' * (count != 1)} of the log could not be written: {reason}\n"


def lost_as_json(count: int, reason: str) -> str:
    """The line that reports lost log lines, as a JSON event."""
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    event = {"timestamp": now, "level": "warning", "event": "log_lines_lost", "count": count, "reason": reason}
    return json.dumps(event) + "\n"
