"""Process groups: what a child has started ends with it."""

import contextlib
import os
import signal
import subprocess
import time

TIMEOUT_SECONDS = 10.0
POLL_SECONDS = 0.02


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


def _reap(group: int) -> None:
    # The leader's orphans become ours where this is process 1 of a container; a zombie that nobody waits for stays in
    # its group for ever.
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
