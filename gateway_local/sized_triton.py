"""`python3 -m gateway_local.sized_triton tritonserver …`: Triton with counts that fit the container it runs in.

For NVIDIA's image, whose Python has none of this project's dependencies: standard library only. Triton gets links to a
given repository, which may be read-only, with configurations that are completed for the cores, the memory and the GPUs
of the container. A child process follows later changes of the repository.
"""

import argparse
import os
import sys
import time
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from gateway.machine.capacity import MIB, SHARED_BYTES, Costs, Plan, fitting_plan, pinned_pool_bytes
from gateway.machine.cores import usable_cores
from gateway.machine.gpus import DRIVER, Gpus, reported_gpus
from gateway.machine.memory import memory_limit
from gateway_local.sizing import ARGUMENT, SizedRepository

CORES_VARIABLE = "GATEWAY_CORES"
"""Cores to size for, such as a pod's requests; without it, or with 0, the container's."""
ALONE_VARIABLE, COSTS_VARIABLE = "GATEWAY_TRITON_ALONE", "GATEWAY_COSTS"
"""Whether no gateway shares the cores; and what an image costs, as `gateway doctor --run` prints it."""
DEVICES_VARIABLE = "GATEWAY_DEVICES"
"""The GPUs to use, such as 0,2 or GPU-…; all if it is empty or `all`; with `none`, networks run on the CPU."""
NO_DEVICES = "none"
TRUE = frozenset({"1", "true", "yes", "on", "y", "t"})
"""Values of a true setting, as pydantic reads them."""
REPOSITORY, THREADS = "--model-repository", "--grpc-infer-thread-count"
LOAD_THREADS, PINNED = "--model-load-thread-count", "--pinned-memory-pool-byte-size"
SHARED_MEMORY = "/dev/shm"  # noqa: S108  # where POSIX shared memory lives on Linux
CHECK_SECONDS = 2.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Size the model repository of a tritonserver command line, and become that command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--require-gpu", action="store_true", help="end with an error if no GPU can be seen")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=f"tritonserver {REPOSITORY}=… …")
    options = parser.parse_args(arguments)
    use_devices(os.environ)
    on_cpu = os.environ.get(DEVICES_VARIABLE, "").strip().lower() == NO_DEVICES
    found = Gpus(0) if on_cpu else reported_gpus()
    if options.require_gpu and not found.count and not on_cpu:
        fault = found.fault or f"there is no NVIDIA driver here ({DRIVER} cannot be loaded)"
        sys.exit(
            f"sized | no GPU can be seen, and this image runs networks on GPUs: {fault}. Give it a GPU "
            f"(docker run --gpus all; nvidia.com/gpu in Kubernetes), check the driver with nvidia-smi, or set "
            f"{DEVICES_VARIABLE}={NO_DEVICES} to run networks on the CPU"
        )
    repository = value_of(options.command, REPOSITORY)
    if repository is None:
        sys.exit(f"sized | tritonserver's {REPOSITORY} is missing")
    chosen = container_plan(os.environ, found.count, memory_limit())
    for line in chosen.explained():
        say(line)
    sized = SizedRepository(Path(repository), chosen, linked=True)
    sized.update()
    word = f"{REPOSITORY}={repository}"
    command = [f"{REPOSITORY}={sized.path}" if each == word else each for each in options.command]
    command.append(ARGUMENT)
    shared = os.statvfs(SHARED_MEMORY)
    if warning := short_of_shared_memory(shared.f_blocks * shared.f_frsize, chosen):
        say(warning)
    numbers = {THREADS: chosen.grpc_threads, LOAD_THREADS: chosen.load_threads}
    if chosen.gpus:
        numbers[PINNED] = pinned_pool_bytes(chosen.all_images_in_flight)
    command += [f"{option}={number}" for option, number in numbers.items() if value_of(command, option) is None]
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


def use_devices(environment: MutableMapping[str, str]) -> None:
    """Have CUDA, and so Triton, use only the GPUs of DEVICES_VARIABLE, by the numbers of nvidia-smi."""
    devices = environment.get(DEVICES_VARIABLE, "").strip()
    if devices.lower() == NO_DEVICES:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    elif devices.lower() not in {"", "all"}:
        environment.update(CUDA_VISIBLE_DEVICES=devices, CUDA_DEVICE_ORDER="PCI_BUS_ID")


def say(text: str) -> None:
    """Write a line to the container's log."""
    sys.stderr.write(f"sized | {text}\n")
    sys.stderr.flush()


def container_plan(environment: Mapping[str, str], gpus: int, memory_bytes: int | None) -> Plan:
    """The plan for the cores of a variable, or else of the container, and its memory; raises ValueError."""
    wanted = float(environment.get(CORES_VARIABLE) or 0)
    return fitting_plan(
        min(wanted, usable_cores()) if wanted > 0 else usable_cores(),
        gpus,
        Costs.read(environment.get(COSTS_VARIABLE, "")),
        # On a GPU, networks run in Triton's own process.
        lambda plan: memory_bytes is None or plan.models_bytes <= memory_bytes,
        triton_alone=environment.get(ALONE_VARIABLE, "").lower() in TRUE,
    )


def short_of_shared_memory(there_bytes: int, chosen: Plan) -> str:
    """A warning if the preprocessors may need more shared memory than there is; else ""."""
    wanted = SHARED_BYTES * chosen.preprocessors
    if there_bytes >= wanted:
        return ""
    return (
        f"warning: {SHARED_MEMORY} has {there_bytes // MIB:,} MiB, and preprocessors may need {wanted // MIB:,} MiB "
        "under load: docker run --shm-size, shm_size in Compose, triton.sharedMemory in the chart"
    )


def value_of(command: Sequence[str], option: str) -> str | None:
    """The value of --option=VALUE in a command."""
    return next((word.partition("=")[2] for word in command if word.startswith(f"{option}=")), None)


if __name__ == "__main__":
    main()
