"""Runs a lone image on several threads while nothing else runs on the machine, and batches on one.

threads.json    next to the network: how many threads, as `gateway_local/elastic.py` timed them on this machine

../pytorch/model.py imports this module too. Only the standard library is used: the commands load the same file.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RECORD = "threads.json"
LOADAVG = Path("/proc/loadavg")
LOOKS, PAUSE_SECONDS = 4, 40e-6
"""Number of checks whether nothing else can run, and the pause between two: the process that has passed the image on
may still be ending its work."""


def record(model: Path) -> dict[str, Any]:
    """The record of a network; empty if there is no readable one."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(model.with_name(RECORD).read_bytes())
        return found if isinstance(found, dict) else {}
    return {}


def threads_of(model: Path) -> int:
    """The threads for a lone image of a network, at most as many as this process has cores; 1 without a record."""
    threads = record(model).get("threads")
    return max(1, min(threads, len(os.sched_getaffinity(0)))) if isinstance(threads, int) else 1


class Load:
    """Whether anything but the calling thread can run: the fourth field of /proc/loadavg (proc_loadavg(5)).

    In a container it is the host's, so that other containers count as well.
    """

    def __init__(self, path: Path = LOADAVG, sleep: Callable[[float], None] = time.sleep) -> None:
        self._file = os.open(path, os.O_RDONLY)
        self._sleep = sleep

    def is_alone(self) -> bool:
        """Whether nothing else can run now, or within a few pauses."""
        for look in range(LOOKS):
            if look:
                self._sleep(PAUSE_SECONDS)
            if int(os.pread(self._file, 100, 0).split()[3].split(b"/")[0]) <= 1:
                return True
        return False


class Elastic:
    """A session for batches, and one with several threads for a lone image; see `session_of` of model.py."""

    def __init__(self, session: Any, lone: Any, threads: int, is_alone: Callable[[], bool]) -> None:  # noqa: ANN401
        self._session, self._lone, self._is_alone = session, lone, is_alone
        self._may_shrink: Callable[[], bool] = getattr(session, "may_shrink", bool)
        """Whether the session for batches gets the next lone image, to return its memory."""
        self.inputs, self.outputs = session.inputs, session.outputs
        self.described = f"{session.described}, a lone image on {threads} threads while nothing else runs"

    def run(self, outputs: list[str], feed: dict[str, Any]) -> list[Any]:
        """The outputs of a batch."""
        is_lone = all(len(each) == 1 for each in feed.values()) and not self._may_shrink() and self._is_alone()
        found: list[Any] = (self._lone if is_lone else self._session).run(outputs, feed)
        return found


def opened(make: Callable[[dict[str, str]], Any], model: Path, parameters: dict[str, str], args: dict[str, str]) -> Any:  # noqa: ANN401
    """The session that `make` makes with parameters, elastic where the network's record says so.

    Not on a GPU, nor where config.pbtxt asks for several threads for every batch.
    """
    session = make(parameters)
    on_cpu = args["model_instance_kind"] != "GPU"
    threads = threads_of(model) if on_cpu and parameters.get("intra_op_thread_count", "1") == "1" else 1
    if threads == 1 or not LOADAVG.is_file():
        return session
    # Threads that spin while they wait would take the cores that the other steps need.
    lone = make({**parameters, "intra_op_thread_count": str(threads), "allow_spinning": "0"})
    return Elastic(session, lone, threads, Load().is_alone)
