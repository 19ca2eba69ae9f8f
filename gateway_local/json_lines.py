"""The output of `gateway up` and its Triton as JSON lines, like the API's log, for log collectors."""

import json
import sys
from contextlib import AbstractContextManager
from datetime import UTC, datetime

from gateway_local.display import Reminders
from gateway_local.server import LOG_PREFIX
from gateway_local.server_log import level_and_text


class JsonLines:
    """A Display that writes one event per line to stderr."""

    def __init__(self) -> None:
        self._reminders = Reminders(self.say)

    def say(self, text: str) -> None:
        """Write a line of `gateway up` itself."""
        _write("info", "up", text)

    def log(self, line: str) -> None:
        """Write a line of Triton's log; its tables are written line by line."""
        self._reminders.log(line)
        level, text = level_and_text(line.removeprefix(LOG_PREFIX))
        if text:
            _write(level, "triton", text)

    def waiting(self, text: str) -> AbstractContextManager[object]:
        """Report the step at once and periodically."""
        return self._reminders.waiting(text)


def _write(level: str, event: str, message: str) -> None:
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    line = json.dumps({"timestamp": now, "level": level, "event": event, "message": message})
    sys.stderr.write(f"{line}\n")  # in one call: several threads write
    sys.stderr.flush()
