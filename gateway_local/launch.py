"""Become another program that is killed when the process that started it dies, however it dies.

    python -I -S launch.py PARENT_PID PROGRAM ARGUMENT…

Linux: prctl(2) PR_SET_PDEATHSIG outlives execve. A script of its own instead of subprocess's preexec_fn, which may
deadlock in a process with threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent_pid: int, command: list[str]) -> None:
    """Replace this process by `command`."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the call, and then no signal comes.
    if os.getppid() != parent_pid:
        sys.exit(1)
    os.execv(command[0], command)  # noqa: S606  # the same process must become the program


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
