"""Replace this process by a program that is killed when the process that started it dies, however it dies.

    python -I -S launch.py PARENT_PID PROGRAM ARGUMENT…

Linux: prctl(2) PR_SET_PDEATHSIG is kept across execve. This is a separate script because subprocess's preexec_fn may
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
    # If the parent died before the call, no signal is sent.
    if os.getppid() != parent_pid:
        sys.exit(1)
    os.execv(command[0], command)  # noqa: S606  # the same process must become the program


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
