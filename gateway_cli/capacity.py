"""`gateway capacity`: settings for a machine, from its cores and GPUs."""

from dataclasses import replace
from enum import StrEnum
from typing import Annotated

import typer

from gateway.settings import variable
from gateway_cli.terminal import Repository, emit
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from gateway_machine.capacity import MIB, WORKER_BYTES, plan


class Output(StrEnum):
    """The output format."""

    TEXT = "text"
    ENV = "env"


def capacity(
    cores: Annotated[
        float | None,
        typer.Option(help="Physical cores of the machine; by default, those of this one.", min=0.1, max=4_096),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(help="GPUs of the machine; by default, those of this one.", min=0, max=64)
    ] = None,
    gpu_ms: Annotated[
        float | None,
        typer.Option(help="Time that your network takes for one image of a batch on a GPU.", min=0.001, max=10_000),
    ] = None,
    cpu_ms: Annotated[
        float | None, typer.Option(help="The same on one core, without a GPU.", min=0.001, max=100_000)
    ] = None,
    output: Annotated[
        Output, typer.Option("--format", help="`env` prints only the GATEWAY_ variables, for .env.")
    ] = Output.TEXT,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
) -> None:
    """Compute settings for a machine that runs the gateway and Triton; docs/guides/sizing.md has the arithmetic.

    `gateway up` and the containers apply them by themselves. `gateway doctor --run` measures what an image costs here.

        gateway capacity --cores 16 --gpus 1

        gateway capacity --cores 16 --gpus 1 --format env >> .env
    """
    from gateway_local.cost_record import recorded_costs
    from gateway_machine.cores import usable_cores
    from gateway_machine.gpus import gpu_count

    given = {"gpu_network_ms": gpu_ms, "network_ms": cpu_ms}
    costs = replace(
        recorded_costs(model_repository), **{name: value for name, value in given.items() if value is not None}
    )
    found = plan(cores or usable_cores(), gpu_count() if gpus is None else gpus, costs)
    variables = [f"{variable(field)}={value}" for field, value in found.settings().items()]
    if output is Output.ENV:
        emit(*variables)
        return
    preferred = ",".join(map(str, found.preferred))
    emit(
        *found.explained(),
        "",
        "# what `gateway up` and the containers choose by themselves; to write it down instead, .env:",
        *variables,
        "# a model of your own",
        f"  gateway model add … --preprocessor-instances {found.preprocessors} --instances {found.networks} "
        f"--preferred {preferred} --queue-delay-us {found.queue_delay_us}",
        "# Triton",
        f"  tritonserver --grpc-infer-thread-count={found.grpc_threads}",
        "",
        f"# memory without images {(found.models_bytes + found.workers * WORKER_BYTES) // MIB:,} MiB, of which "
        f"{found.shared_memory_bytes // MIB:,} MiB in /dev/shm",
    )
