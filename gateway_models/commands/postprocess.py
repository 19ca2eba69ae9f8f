"""`gateway model postprocess`: a new version of a model, with post-processing of its network's scores."""

from pathlib import Path
from typing import Annotated

import typer

from gateway.command_line.addresses import Triton
from gateway.command_line.terminal import Repository, emit, print_status
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY, at
from gateway_models.commands.group import Name, explain_how_to_load, model_app, reload
from gateway_models.commands.places import takes_bucket


@model_app.command("postprocess")
@takes_bucket
def postprocess(
    name: Name,
    step: Annotated[
        str,
        typer.Argument(
            help="A YAML file that declares calibration or own classes, or a Python function, FILE.py:NAME."
        ),
    ],
    version: Annotated[
        int | None,
        typer.Option("--version", help="Version whose network it follows; by default the one in use.", min=1),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option("--labels", help="For FILE.py: its labels, if they are not the network's.", dir_okay=False),
    ] = None,
    include: Annotated[
        list[Path] | None,
        typer.Option("--include", help="For FILE.py: a file or folder that it imports or reads; may be repeated."),
    ] = None,
    address: Triton = None,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
    *,
    trust: Annotated[bool, typer.Option("--trust", help="For FILE.py: its code may run here and in Triton.")] = False,
) -> None:
    """Add a version of the same network with post-processing: calibrated scores, own classes, or a function.

    The network is not converted or loaded again. The new version is not put into use.

        gateway model postprocess flowers groups.yaml

        gateway model postprocess flowers my_step.py:regroup --labels groups.txt --trust
    """
    from gateway_models.networks.add import add_step
    from gateway_models.repository.after import FunctionStep, read_step

    found = read_step(step)
    if include and not isinstance(found, FunctionStep):
        raise typer.BadParameter("--include is for FILE.py:NAME")
    entry, number = add_step(
        found, model_repository, name, version, print_status, labels=labels, include=include or (), trust=trust
    )
    reload(address, load=entry.ensembles)
    added = entry.versions[number]
    assert added.spec.after is not None
    then = added.spec.after.described()
    emit(f"{name} version {number}: the network of version {entry.network_of(number)}, then {then}")
    emit(f"  {added.classes} classes, in {entry.labels_file(model_repository, number)}")
    emit_next_steps(name, number, model_repository)
    explain_how_to_load(name, address)


def emit_next_steps(name: str, number: int, repository: Path) -> None:
    """Print what to do with a version that is not in use."""
    emit("to check it, and to put it into use:")
    emit(f"  gateway model verify {name} --version {number}{at(repository)}")
    emit(f"  gateway model use {name} {number}{at(repository)}")
