"""What a worker process owes to the supervisor that started it."""

import ctypes
import multiprocessing
import os
import signal

PR_SET_PDEATHSIG = 1  # prctl(2)


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
