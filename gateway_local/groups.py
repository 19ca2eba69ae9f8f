"""Process groups: the descendants of a child end with it."""

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

from gateway.machine.child_environment import child_environment
from gateway_local import reaper

TIMEOUT_SECONDS = 10.0
POLL_SECONDS = 0.02


class Reaper:
    """A process that kills the process groups of this process's children when this process dies.

    It is started for the first group. If it has died, the next call of any method replaces it; the new one watches
    all groups.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._groups: set[int] = set()
        self._lock = threading.Lock()

    def watch(self, group: int) -> None:
        """Have a group killed when this process dies."""
        with self._lock:
            self._groups.add(group)
            self._send(f"+{group}\n")

    def forget(self, group: int) -> None:
        """Stop watching a group that has ended, since its number may be reused."""
        with self._lock:
            self._groups.discard(group)
            self._send(f"-{group}\n")

    def check(self) -> None:
        """Replace the reaper process if it has died while there are groups to watch; call this periodically."""
        with self._lock:
            if self._groups:
                self._send("")

    def _send(self, line: str) -> None:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", reaper.__file__],
                env=child_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
                # A signal to this process's own group must not reach it first.
                start_new_session=True,
            )
            atexit.register(self._dismiss, self._process)
            line = "".join(f"+{group}\n" for group in sorted(self._groups))
        if not line:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line)
            self._process.stdin.flush()

    @staticmethod
    def _dismiss(process: "subprocess.Popen[str]") -> None:
        # Groups that are still watched were not stopped; the reaper kills them.
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        process.wait()


REAPER = Reaper()


def signal_group(process: "subprocess.Popen[bytes] | subprocess.Popen[str]", number: int) -> bool:
    """Send a signal to the process group that `process` leads; False if the group has ended."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def kill_group(process: "subprocess.Popen[bytes] | subprocess.Popen[str]") -> None:
    """Kill a child that leads a process group, with the whole group; returns when the group has ended.

    The leader may have ended already. Call this once per leader: afterwards the group's number may be reused.
    """
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while signal_group(process, signal.SIGKILL) and time.monotonic() < deadline:
        # The leader first, by its own Popen, which must not miss the exit code.
        if process.poll() is not None:
            _reap(process.pid)
        time.sleep(POLL_SECONDS)
    process.wait()
    REAPER.forget(process.pid)


def _reap(group: int) -> None:
    # In a container this process may be process 1, which inherits the leader's orphans; a zombie stays in its group
    # until its parent waits for it.
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
