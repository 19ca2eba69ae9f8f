"""`python3 -m gateway_local.sized_triton tritonserver …`: Triton with counts that fit the container it runs in.

For NVIDIA's image, whose Python has none of this project's dependencies: standard library only. Triton gets links to a
given repository, which may be read-only, with configurations that are completed for the cores, the memory and the GPUs
of the container. A child process follows later changes of the repository.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gateway.capacity import Plan, fitting_plan
from gateway.cores import usable_cores
from gateway.gpus import gpu_count
from gateway.memory import memory_limit
from gateway_local.sizing import ARGUMENT, SizedRepository

CORES_VARIABLE = "GATEWAY_CORES"
"""Cores to size for, such as those that a pod requests; without it, or with 0, those of the container."""
REPOSITORY, THREADS = "--model-repository", "--grpc-infer-thread-count"
CHECK_SECONDS = 2.0
HELP_SECONDS = 30.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Size the model repository of a tritonserver command line, and become that command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--require-gpu", action="store_true", help="end with an error if no GPU can be seen")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=f"tritonserver {REPOSITORY}=… …")
    options = parser.parse_args(arguments)
    gpus = gpu_count()
    if options.require_gpu and not gpus:
        sys.exit(
            "sized | no GPU can be seen, and this image runs networks on GPUs: give the container one (docker run "
            "--gpus all; nvidia.com/gpu in Kubernetes) and check the driver with nvidia-smi, or use the image for CPUs"
        )
    repository = value_of(options.command, REPOSITORY)
    if repository is None:
        sys.exit(f"sized | tritonserver's {REPOSITORY} is missing")
    chosen = container_plan(os.environ.get(CORES_VARIABLE, ""), gpus, memory_limit())
    for line in chosen.explained():
        say(line)
    sized = SizedRepository(Path(repository), chosen, linked=True)
    sized.update()
    word = f"{REPOSITORY}={repository}"
    command = [f"{REPOSITORY}={sized.path}" if each == word else each for each in options.command]
    command.append(ARGUMENT)
    if value_of(command, THREADS) is None and has_option(command[0], THREADS):
        command.append(f"{THREADS}={chosen.grpc_threads}")
    server = os.getpid()
    # The child follows the repository; this process becomes Triton, so that signals and the exit code are its own.
    if os.fork():
        os.execvp(command[0], command)  # noqa: S606  # the command line of the image
    while os.getppid() == server:
        time.sleep(CHECK_SECONDS)
        try:
            sized.update()
        except OSError as exc:
            say(f"the models cannot be sized again: {exc}")


def say(text: str) -> None:
    """Write a line to the container's log."""
    sys.stderr.write(f"sized | {text}\n")
    sys.stderr.flush()


def container_plan(cores: str, gpus: int, memory_bytes: int | None) -> Plan:
    """The plan for the cores of a variable, or else of the container, and its memory; raises ValueError."""
    wanted = float(cores or 0)
    found = min(wanted, usable_cores()) if wanted > 0 else usable_cores()
    # On a GPU, networks run in Triton's own process.
    return fitting_plan(found, gpus, None, lambda plan: memory_bytes is None or plan.models_bytes <= memory_bytes)


def value_of(command: Sequence[str], option: str) -> str | None:
    """The value of --option=VALUE in a command."""
    return next((word.partition("=")[2] for word in command if word.startswith(f"{option}=")), None)


def has_option(program: str, option: str) -> bool:
    """Whether a program's --help names an option."""
    try:
        done = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=HELP_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return option in done.stdout + done.stderr


if __name__ == "__main__":
    main()
