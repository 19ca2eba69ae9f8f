"""Records of the services that run for this user: a small file for each port, in the user's state folder.

`gateway up` and `gateway serve` write them; `gateway status`, `stop` and `reload` read them. A record is valid as long
as the process with its id began at the same time: ids are reused, also after a restart of the machine.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def state_folder() -> Path:
    """The folder for logs and records: `triton-image-gateway` in $XDG_STATE_HOME or ~/.local/state."""
    root = os.environ.get("XDG_STATE_HOME", "")
    return (Path(root) if Path(root).is_absolute() else Path.home() / ".local" / "state") / "triton-image-gateway"


class ServiceRecord:
    """The record of this process's service; a folder that cannot be written leaves the service without one."""

    def __init__(self, port: int, **fields: object) -> None:
        try:
            self._path: Path | None = state_folder() / f"service-{port}.json"
        except RuntimeError:  # a user without a home
            self._path = None
        since = datetime.now(UTC).isoformat(timespec="seconds")
        self._fields = {
            "port": port,
            "pid": os.getpid(),
            "began": began(os.getpid()),
            "since": since,
            "reloads": 0,
            "fault": None,
            "log": _log_file(),
            **fields,
        }
        self.update()

    def update(self, **fields: object) -> None:
        """Write the record with these fields."""
        self._fields |= fields
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._path.parent, delete=False) as file:
                json.dump(self._fields, file)
            Path(file.name).replace(self._path)

    def follow(self, event: str, fields: Mapping[str, object]) -> None:
        """Count a reload that has ended, by its event, and record why it failed, if it did."""
        if event in {"reloaded", "reload_failed"}:
            self.update(reloads=int(str(self._fields["reloads"])) + 1, fault=fields.get("reason"))

    def remove(self) -> None:
        """Remove the record, unless another service has taken the port since."""
        if self._path is not None and (read(self._path) or {}).get("pid") == os.getpid():
            self._path.unlink(missing_ok=True)


def running() -> Iterator[dict[str, Any]]:
    """The records of running services, by port; removes the records of ended processes."""
    for path in sorted(state_folder().glob("service-*.json")):
        record = read(path)
        if record is not None and lives(record):
            yield record
        else:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def lives(record: dict[str, Any]) -> bool:
    """Whether the process of a record still runs."""
    return bool(began(int(record["pid"])) == record["began"])


def read(path: Path) -> dict[str, Any] | None:
    """The record in a file; None if there is none that can be read."""
    try:
        record = json.loads(path.read_bytes())
        return record if record.keys() >= {"port", "pid", "began", "reloads"} else None
    except (OSError, ValueError, AttributeError):
        return None


def began(pid: int) -> str | None:
    """When a process began: the machine's boot, and the clock ticks since; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    return None if fields[0] in "ZX" else f"{boot} {fields[19]}"


def _log_file() -> str:
    """The file with this process's log; "" for a terminal or a pipe."""
    stream = Path("/proc/self/fd/2")
    return str(stream.resolve()) if stream.is_file() else ""
