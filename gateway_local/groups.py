"""Process groups: what a child has started ends with it."""

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

from gateway_local import reaper

TIMEOUT_SECONDS = 10.0
POLL_SECONDS = 0.02


class Reaper:
    """A process that kills the groups of this one's children when this one dies; started with the first of them.

    One that has died itself is replaced by the next call of any method; the new one knows all groups.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._groups: set[int] = set()
        self._lock = threading.Lock()

    def watch(self, group: int) -> None:
        """Have a group killed when this process dies."""
        with self._lock:
            self._groups.add(group)
            self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        """The group is gone, and its number may soon be another's."""
        with self._lock:
            self._groups.discard(group)
            self._tell(f"-{group}\n")

    def check(self) -> None:
        """Replace the process if it has died while there is something to watch; call it again and again."""
        with self._lock:
            if self._groups:
                self._tell("")

    def _tell(self, line: str) -> None:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", reaper.__file__],
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
        # What is still watched now was not stopped, and is killed.
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        process.wait()


REAPER = Reaper()


def signal_group(process: "subprocess.Popen[bytes] | subprocess.Popen[str]", number: int) -> bool:
    """Send a signal to all of the group that `process` leads; False when none of it is left."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def kill_group(process: "subprocess.Popen[bytes] | subprocess.Popen[str]") -> None:
    """Kill a child that leads a process group, and all of its group; returns when none of it lives.

    The leader may have ended already. Call it once for each leader: later its group's number may be another's.
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
    # The leader's orphans become ours where this is process 1 of a container; a zombie that nobody waits for stays in
    # its group for ever.
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
