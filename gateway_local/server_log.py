"""Reading Triton's log, in its default format."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

MAX_ERRORS = 1_000

_RECORD = re.compile(r'^([IWEF])\d{4} [\d:.]+ \d+ \S+\] "?(.*?)"?$')
_LEVELS = {"I": "info", "W": "warning", "E": "error", "F": "error"}
_PROTOBUF_ERROR = re.compile(r"^\[libprotobuf ERROR \S+\] ")
_NO_GPU = (
    "CudaDriverHelper has not been initialized",
    "CUDA driver version is insufficient",
    "failed to allocate pinned system memory",
)
"""Errors and warnings that Triton logs on every machine without a GPU."""
_STOPPING = ("Exit timeout expired",)
"""Errors that Triton logs while it stops; they are not faults, since what still runs then is killed."""
_LOADING = re.compile(r"^loading: (\S+):\d+$")
_LOADED = re.compile(r"^successfully loaded '([^']+)'")


def concerns_a_gpu_alone(line: str) -> bool:
    """Whether a line of the log means nothing on a machine without a GPU."""
    return any(complaint in line for complaint in _NO_GPU)


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the log that operators need to see: a model is `loading` or `loaded`, or an `error` occurred."""

    kind: Literal["loading", "loaded", "error"]
    text: str


class TritonLogReader:
    """Reads a log line by line; each error is reported once."""

    def __init__(self) -> None:
        self._errors: set[str] = set()

    def read(self, line: str) -> Event | None:
        """The event in a line of Triton's default format, if there is one."""
        record = _RECORD.match(line)
        if record is None:
            return None
        level, text = record[1], record[2]
        if loading := _LOADING.match(text):
            return Event("loading", loading[1])
        if loaded := _LOADED.match(text):
            return Event("loaded", loaded[1])
        if level not in "EF" or any(harmless in text for harmless in (*_NO_GPU, *_STOPPING)):
            return None
        first = text.split("\\n")[0].strip()
        if not first or first in self._errors or len(self._errors) > MAX_ERRORS:
            return None
        self._errors.add(first)
        return Event("error", first)


def level_and_text(line: str) -> tuple[str, str]:
    """The level of a line (info if it has none) and its text."""
    record = _RECORD.match(line)
    return (_LEVELS[record[1]], record[2]) if record else ("info", line.strip())


def error_lines(log: Iterable[str]) -> list[str]:
    """The errors in a log of Triton's default format, each with its continuation lines, without repeats."""
    found: list[str] = []
    in_error = False
    for line in log:
        record = _RECORD.match(line)
        if record:
            in_error = record[1] in "EF" and not concerns_a_gpu_alone(record[2])
        text = record[2] if record else line
        if in_error or _PROTOBUF_ERROR.match(line):
            # Triton escapes line breaks within a message as \n.
            parts = _PROTOBUF_ERROR.sub("", text).split("\\n")
            found += [part for part in parts if part.strip() and part not in found]
    return found
