"""`gateway capacity`: settings for a machine, from its cores and GPUs."""

from enum import StrEnum
from typing import Annotated

import typer

from gateway.capacity import GPU_NETWORK_MS, MIB, NETWORK_MS, Plan, plan
from gateway.settings import variable
from gateway_cli.terminal import emit


class Output(StrEnum):
    """The output format."""

    TEXT = "text"
    ENV = "env"


def capacity(
    cores: Annotated[
        int | None,
        typer.Option("--cores", help="Cores of the machine; by default, those of this one.", min=1, max=4_096),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus", help="GPUs of the machine; by default, those of this one.", min=0, max=64, show_default=False
        ),
    ] = None,
    gpu_ms: Annotated[
        float,
        typer.Option(
            "--gpu-ms", help="Time that your network takes for one image of a batch on a GPU.", min=0.001, max=10_000
        ),
    ] = GPU_NETWORK_MS,
    cpu_ms: Annotated[
        float, typer.Option("--cpu-ms", help="The same on one core, without a GPU.", min=0.001, max=100_000)
    ] = NETWORK_MS,
    output: Annotated[
        Output, typer.Option("--format", help="`env` prints only the GATEWAY_ variables, for .env.")
    ] = Output.TEXT,
) -> None:
    """Compute settings for a machine that runs the gateway and Triton; docs/guides/sizing.md has the arithmetic.

    gateway capacity --cores 16 --gpus 1

    gateway capacity --cores 16 --gpus 1 --format env >> .env
    """
    from gateway.cores import usable_cores
    from gateway.gpus import gpu_count

    found = plan(
        cores or max(1, int(usable_cores())),
        gpu_count() if gpus is None else gpus,
        gpu_network_ms=gpu_ms,
        network_ms=cpu_ms,
    )
    variables = [f"{variable(field)}={value}" for field, value in found.settings().items()]
    if output is Output.ENV:
        emit(*variables)
        return
    emit(*_report(found, variables))


def _report(found: Plan, variables: list[str]) -> list[str]:
    gpus = f", {found.gpus} GPU{'s' * (found.gpus > 1)}" if found.gpus else ", no GPU"
    preferred = ",".join(map(str, found.preferred))
    kind = "KIND_GPU" if found.gpus else "KIND_CPU"
    delay = [f"  max_queue_delay_microseconds: {found.queue_delay_us}"] if found.queue_delay_us else []
    return [
        f"{found.cores} core{'s' * (found.cores > 1)}{gpus}: about {found.images_per_second:,.0f} images/s, "
        f"limited by: {found.limited_by}",
        *(f"  {part:<20}{rate:>8,.0f} images/s" for part, rate in found.ceilings.items()),
        "",
        "# .env, for the gateway",
        *variables,
        "",
        "# config.pbtxt of the preprocessor",
        f"  instance_group [ {{ kind: KIND_CPU count: {found.preprocessors} }} ]",
        "# config.pbtxt of the classifier",
        f"  instance_group [ {{ kind: {kind} count: {found.networks} }} ]",
        f"  preferred_batch_size: [ {preferred.replace(',', ', ')} ]",
        *delay,
        "# or, for a model of your own",
        f"  gateway model add … --preprocessor-instances {found.preprocessors} --instances {found.networks} "
        f"--preferred {preferred}",
        "",
        f"# memory without images {found.memory_bytes // MIB:,} MiB, of which in /dev/shm "
        f"{found.shared_memory_bytes // MIB:,} MiB",
    ]
