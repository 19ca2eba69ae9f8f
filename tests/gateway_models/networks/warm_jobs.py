"""Jobs of `gateway_models.networks.isolation` in a process that has already imported torch and scikit-learn.

This saves seconds for each.

A fork server (multiprocessing's) imports what a job needs once, and each job is a fork of it: still a separate process
with its own limits, which may crash and be killed.
"""

import multiprocessing
import os
import sys
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import IO, Any

NEEDED = ["gateway_models.networks.jobs", "torchvision.models", "sklearn", "skops.io"]


def _run(standard: tuple[Connection, ...], others: tuple[int, ...]) -> None:
    for other in others:
        os.close(other)
    for number, connection in enumerate(standard):
        os.dup2(connection.fileno(), number)
    sys.stdin = os.fdopen(0, closefd=False)
    from gateway_models.networks.jobs import main

    main()


class WarmProcess:
    """The part of subprocess.Popen that `isolation` uses."""

    context: Any = multiprocessing.get_context("forkserver")

    def __init__(self) -> None:
        self.context.set_forkserver_preload(NEEDED)
        if self.context.get_start_method() == "forkserver":
            forkserver.ensure_running()
        (given, stdin), (stdout, answer), (stderr, progress) = (os.pipe() for _ in range(3))
        theirs = (
            Connection(given, writable=False),
            Connection(answer, readable=False),
            Connection(progress, readable=False),
        )
        # A fork has the other ends too, and would wait for its own input to end.
        others = () if self.context.get_start_method() == "forkserver" else (stdin, stdout, stderr)
        self.stdin: IO[str] = os.fdopen(stdin, "w")
        self.stdout: IO[str] = os.fdopen(stdout)
        self.stderr: IO[str] = os.fdopen(stderr)
        self._process = self.context.Process(target=_run, args=(theirs, others))
        self._process.start()
        for end in theirs:
            end.close()

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> int:
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode
