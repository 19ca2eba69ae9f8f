"""Kill process groups when the process that started them dies.

    python -I -S reaper.py

Lines on stdin are `+GROUP` to watch a group and `-GROUP` to forget it. Only the parent holds the other end of the pipe,
so the input ends when the parent does; then every group that is still watched is killed. The signal on a parent's death
(PR_SET_PDEATHSIG) reaches a child, but not the child's children: one of Triton's stubs that waits for a lock held by a
killed Triton would wait for ever.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterable


def watch(lines: Iterable[str]) -> set[int]:
    """The groups that are still watched when the input ends."""
    groups: set[int] = set()
    for line in lines:
        change, group = line[:1], int(line[1:])
        (groups.add if change == "+" else groups.discard)(group)
    return groups


def main() -> None:
    """Wait for the end of the input, then kill the watched groups."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for group in watch(sys.stdin):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
