"""`gateway capacity`: settings for a machine, from its cores and GPUs."""

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gateway.settings import variable
from gateway_cli.terminal import Repository, emit, print_status
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from gateway_machine.capacity import MIB, Costs, Plan, plan


class Output(StrEnum):
    """The output format."""

    TEXT = "text"
    ENV = "env"


def capacity(
    cores: Annotated[
        float | None,
        typer.Option(
            "--cores", help="Physical cores of the machine; by default, those of this one.", min=0.1, max=4_096
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus", help="GPUs of the machine; by default, those of this one.", min=0, max=64, show_default=False
        ),
    ] = None,
    gpu_ms: Annotated[
        float | None,
        typer.Option(
            "--gpu-ms", help="Time that your network takes for one image of a batch on a GPU.", min=0.001, max=10_000
        ),
    ] = None,
    cpu_ms: Annotated[
        float | None, typer.Option("--cpu-ms", help="The same on one core, without a GPU.", min=0.001, max=100_000)
    ] = None,
    *,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure", help="First measure what an image costs here, in half a minute, and keep it for `gateway up`."
        ),
    ] = False,
    photo: Annotated[
        Path | None,
        typer.Option("--photo", help="JPEG to measure with; by default the shipped one.", dir_okay=False, exists=True),
    ] = None,
    output: Annotated[
        Output, typer.Option("--format", help="`env` prints only the GATEWAY_ variables, for .env.")
    ] = Output.TEXT,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
) -> None:
    """Compute settings for a machine that runs the gateway and Triton; docs/guides/sizing.md has the arithmetic.

    `gateway up` and the containers apply them by themselves.

        gateway capacity --cores 16 --gpus 1

        gateway capacity --measure

        gateway capacity --cores 16 --gpus 1 --format env >> .env
    """
    from gateway_local.cost_record import recorded_costs
    from gateway_machine.cores import usable_cores
    from gateway_machine.gpus import gpu_count

    costs = _measured(model_repository, photo) if measure else recorded_costs(model_repository)
    given = {"gpu_network_ms": gpu_ms, "network_ms": cpu_ms}
    costs = replace(costs, **{name: value for name, value in given.items() if value is not None})
    found = plan(cores or usable_cores(), gpu_count() if gpus is None else gpus, costs)
    variables = [f"{variable(field)}={value}" for field, value in found.settings().items()]
    if output is Output.ENV:
        emit(*variables)
        return
    emit(*_report(found, variables))


def _measured(repository: Path, photo: Path | None) -> Costs:
    from gateway.environment import load_settings
    from gateway_local.cost_record import measure_costs, record_costs
    from gateway_local.default_model import default_model
    from gateway_local.display import Lines
    from gateway_local.paths import SAMPLE, SHIPPED_EXAMPLES, default_cache_dir
    from gateway_local.runtime.wheel import ensure_runtime

    settings = load_settings()
    name = default_model(repository, settings)
    runtime = ensure_runtime(default_cache_dir(), print_status)
    sample = (photo or SHIPPED_EXAMPLES / SAMPLE).read_bytes()
    display = Lines(print_status, lambda _: None)
    settings = settings.model_copy(update={"model": name})
    costs, network = measure_costs(settings, repository, runtime, sample, display)
    record_costs(costs, network)
    print_status(f"measured with {network.name}; the next `gateway up` with this network uses these costs")
    print_status(f"for containers: {variable('costs')}={costs.text}")
    return costs


def _network(found: Plan) -> str:
    if not found.gpus:
        return f"{found.costs.network_ms:g} in the network"
    if found.costs.gpu_network_ms is None:
        return "a time of a GPU that was not measured: `--measure` on that machine, or `--gpu-ms`"
    return f"{found.costs.gpu_network_ms:g} of a GPU"


def _report(found: Plan, variables: list[str]) -> list[str]:
    preferred = ",".join(map(str, found.preferred))
    kind = "KIND_GPU" if found.gpus else "KIND_CPU"
    delay = [f"  max_queue_delay_microseconds: {found.queue_delay_us}"] if found.queue_delay_us else []
    costs = found.costs
    return [
        f"{found.machine}: about {found.images_per_second:,.0f} images/s, limited by: {found.limited_by}",
        *(f"  {part:<20}{rate:>8,.0f} images/s" for part, rate in found.ceilings.items()),
        f"  an image takes {costs.gateway_ms:g} ms of a core in the gateway, {costs.triton_ms:g} in Triton, "
        f"{costs.preprocessor_ms:g} in the preprocessor, and " + _network(found),
        "",
        "# what `gateway up` and the containers choose by themselves; to write it down instead:",
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
        "# Triton 23.10 or newer",
        f"  tritonserver --grpc-infer-thread-count={found.grpc_threads}",
        "",
        f"# memory without images {found.memory_bytes // MIB:,} MiB, of which in /dev/shm "
        f"{found.shared_memory_bytes // MIB:,} MiB",
    ]
