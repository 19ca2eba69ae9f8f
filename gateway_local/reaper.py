"""Kill process groups when the process that started them dies, however it dies.

    python -I -S reaper.py

On stdin come lines: `+GROUP` to watch one, `-GROUP` to forget it. The end of the input is the parent's end, since only
the parent holds the pipe's other end; then every group that is still watched is killed. A signal on the death of a
parent (PR_SET_PDEATHSIG) reaches a child, but not the child's children: a stub of Triton that waits on a lock that a
killed Triton held waits for ever.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterable


def watch(lines: Iterable[str]) -> set[int]:
    """The groups that are watched when the input ends."""
    groups: set[int] = set()
    for line in lines:
        change, group = line[:1], int(line[1:])
        (groups.add if change == "+" else groups.discard)(group)
    return groups


def main() -> None:
    """Wait for the end of the input, then kill."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for group in watch(sys.stdin):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
