"""A Redis or Valkey for tests, in a separate process."""

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.processes import free_port, listens, wait_for

PROGRAM = shutil.which("valkey-server") or shutil.which("redis-server")
needs_store = pytest.mark.skipif(
    PROGRAM is None, reason="neither valkey-server nor redis-server is installed (apt-get install redis-server)"
)


class Store:
    """A server on a port that stays its own: it can be killed and started again, empty."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        """Start it, and wait until it takes connections."""
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        options += more
        with (self._folder / "store.log").open("ab") as log:
            self._process = subprocess.Popen([PROGRAM, *options], cwd=self._folder, stdout=log, stderr=log)
        wait_for(lambda: listens(self.port))

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    def hang(self) -> None:
        """Let it take connections and answer nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Continue after `hang`."""
        self._process.send_signal(signal.SIGCONT)
