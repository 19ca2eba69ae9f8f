"""Commands with Python in processes that have already imported torch: seconds less for each.

As in `tests.gateway_models.networks.warm_jobs`, each is a fork of a process that has: with a separate folder,
environment and output. The jobs of a command are forks of the command.
"""

import contextlib
import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path

from tests.gateway_models.networks import warm_jobs

NEEDED = [*warm_jobs.NEEDED, "gateway.command_line.main", "gateway_models.networks.add", "gateway_models.proof.parity"]


class ForkedProcess(warm_jobs.WarmProcess):
    """A job in a fork of this process."""

    context = multiprocessing.get_context("fork")


def is_warm(command: Sequence[str]) -> bool:
    """Whether `run` knows the command."""
    return command[:2] == ["gateway", "model"] or command[0] == "python"


def run(command: Sequence[str], folder: Path, environment: Mapping[str, str], seconds: float) -> str:
    """Run a command; returns its output on both streams. Raises TimeoutError."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(NEEDED)
    forkserver.ensure_running()
    printed = folder.with_name(f"{folder.name}.printed")
    process = context.Process(target=_run, args=(list(command), str(folder), dict(environment), str(printed)))
    process.start()
    try:
        process.join(seconds)
        if process.is_alive():
            raise TimeoutError(f"{command} has not ended within {seconds} s")
    finally:
        process.kill()
        process.join()
    return printed.read_text()


def _run(command: list[str], folder: str, environment: dict[str, str], printed: str) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, folder)  # as `python train.py` does
    with open(printed, "wb", buffering=0) as output:  # noqa: PTH123
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    program, *sys.argv = command
    if program == "gateway":
        from gateway.command_line.main import main
        from gateway_models.networks import isolation

        sys.argv.insert(0, program)
        isolation.start_process = ForkedProcess
        main()
    elif sys.argv[0] == "-c":
        exec(sys.argv[1], {"__name__": "__main__"})  # noqa: S102  # the tutorial's own line
    else:
        with contextlib.suppress(SystemExit):
            runpy.run_path(sys.argv[0], run_name="__main__")
