"""Worker processes: they end with their supervisor, and share a folder."""

import ctypes
import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.errors import UserError
from gateway.metrics import SHARED_FOLDER

PR_SET_PDEATHSIG = 1  # prctl(2)
METRICS_BYTES = 8 * 2**20
"""Space for one worker's files of metrics, 1 MiB for each kind of metric, and as many of a worker that replaces it."""


class NoSpaceForWorkers(UserError):
    """The disk is too full for what several workers share; the message names the folder."""


def die_with_supervisor() -> None:
    """Have the kernel kill this worker when its supervisor dies, however it dies; elsewhere do nothing.

    A worker whose supervisor was killed would keep the port, and whatever is started next could not have it.
    """
    supervisor = multiprocessing.parent_process()
    if supervisor is None:
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have died before the call, and then no signal comes.
    if os.getppid() != supervisor.pid:
        os._exit(1)


@contextmanager
def sharing(workers: int) -> Iterator[None]:
    """A temporary folder in which several workers share metrics; none for one worker."""
    if workers == 1:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="gateway-workers-") as folder:
        wanted = workers * METRICS_BYTES
        if (free := shutil.disk_usage(folder).free) < wanted:
            raise NoSpaceForWorkers(
                f"{folder} has {free // 2**20} MiB of free space, and the metrics of {workers} workers need "
                f"{wanted // 2**20} MiB: free some, set TMPDIR to another folder, or run one worker (GATEWAY_WORKERS=1)"
            )
        os.environ[SHARED_FOLDER] = folder
        yield
