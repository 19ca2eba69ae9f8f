"""A stream for log lines that survives a full disk; standard library only, for the supervisor of `gateway up`."""

import contextlib
import threading
from typing import Any, TextIO


class LogStream:
    """A stream for log lines. A line that cannot be written is dropped, and no exception is raised.

    A full disk or a closed pipe must not stop the program that logs.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        """Write and flush a text, usually whole lines."""
        with self._lock, contextlib.suppress(OSError, ValueError):  # ValueError: it is closed
            self._stream.write(text)
            self._stream.flush()
        return len(text)

    def flush(self) -> None:
        """Do nothing: each write is flushed."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # the stream's isatty, encoding, fileno
        return getattr(self._stream, name)
