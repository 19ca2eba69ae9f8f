"""`gateway model list|show|remove|use`: the models of a repository, and which versions of each answer."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.command_line.addresses import Triton
from gateway.command_line.terminal import Repository, emit, print_status
from gateway.environment import load_settings
from gateway.errors import UserError
from gateway.values.rollout import FOLLOW_SECONDS, Rollout
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from gateway_models.commands.group import Name, explain_how_to_load, model_app, reload
from gateway_models.commands.places import takes_bucket

if TYPE_CHECKING:
    from gateway_models.repository.entry import Entry


@model_app.command("list")
@takes_bucket
def list_models(model_repository: Repository = DEFAULT_MODEL_REPOSITORY) -> None:
    """Show the models of the repository."""
    from gateway_models.repository.manage import entries
    from gateway_models.repository.summary import listed

    if found := entries(model_repository):
        listed(found)
        return
    if not model_repository.is_dir() and model_repository != DEFAULT_MODEL_REPOSITORY:
        raise UserError(f"there is no model repository at {model_repository}")
    print_status(f"there are no models in {model_repository} that `gateway model add` wrote")


@model_app.command("show")
@takes_bucket
def show(name: Name, model_repository: Repository = DEFAULT_MODEL_REPOSITORY) -> None:
    """Show the details of a model, its versions, and which of them answer."""
    from gateway_models.networks.model_source import labels_of
    from gateway_models.repository.entry import read_entry
    from gateway_models.repository.summary import shown

    entry = read_entry(model_repository, name)
    shown(entry, model_repository, labels_of(entry, model_repository, entry.in_use))


@model_app.command("remove")
@takes_bucket
def remove(
    name: Name,
    version: Annotated[int | None, typer.Option(help="Delete this version alone, which must not answer.")] = None,
    address: Triton = None,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
) -> None:
    """Delete a model or one version from the repository, and with --triton from that Triton."""
    from gateway_models.repository.manage import check_removable, remove_version
    from gateway_models.repository.manage import remove as remove_model

    if version is not None:
        entry, gone = remove_version(model_repository, name, version)
        if address is not None and entry.rollout.since is not None:
            # Until then, a gateway may still give it a share of the requests.
            followed = entry.rollout.since + timedelta(seconds=FOLLOW_SECONDS)
            time.sleep(min(FOLLOW_SECONDS, max(0.0, (followed - datetime.now(UTC)).total_seconds())))
        reload(address, load=(*entry.ensembles, entry.classifier), unload=gone)
        emit(f"removed version {version} of {name}")
        explain_how_to_load(name, address)
        return
    entry = check_removable(model_repository, name, load_settings().model)
    reload(address, unload=entry.folders)
    emit(f"removed {name}: {', '.join(remove_model(entry, model_repository))}")


@model_app.command("use")
@takes_bucket
def use(
    name: Name,
    versions: Annotated[
        list[str], typer.Argument(help="The version that answers, such as 2; or several with shares: 1=90 2=10.")
    ],
    shadow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VERSION[=PERCENT]",
            help="This version also classifies the images, or a percentage, after the answer; may be repeated.",
        ),
    ] = None,
    address: Triton = None,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
) -> None:
    """Choose which versions of a model answer; an earlier one rolls back.

    It is recorded in the repository. With --triton, the Triton that serves it loads the record, and every gateway
    follows within 5 s; no request fails meanwhile.
    """
    from gateway_models.repository.entry import read_entry
    from gateway_models.repository.manage import use as record
    from gateway_models.repository.manage import user
    from gateway_models.repository.summary import versioned

    try:
        rollout = Rollout.of(versions, shadow or (), by=user())
    except ValueError as exc:
        raise typer.BadParameter(str(exc)) from None
    before = record(model_repository, name, rollout)
    entry = read_entry(model_repository, name)
    try:
        _load(entry, address, model_repository)
    except UserError as exc:
        record(model_repository, name, before)
        raise UserError(
            *exc.args,
            f"the record in {model_repository} is as before. Triton may still load the new one: repeat the command "
            "once it answers",
        ) from exc
    versioned(entry)
    explain_how_to_load(name, address)


def _load(entry: "Entry", address: str | None, model_repository: Path) -> None:
    """Have a Triton load the record of a model; raises UserError if it has another one after that."""
    from gateway.triton.configs import rollout
    from gateway_models.blocking_triton import BlockingTriton

    if address is None:
        return
    failure = UserError(f"the Triton at {address} serves another repository than {model_repository}")
    try:
        # The model last: gateways that read its record find all versions.
        reload(address, load=(entry.classifier, *sorted(entry.ensembles, reverse=True)))
    except UserError as exc:
        failure = exc  # a busy Triton may load the record after the call's deadline
    with BlockingTriton(address) as triton:
        if rollout(triton.config(entry.name)) != entry.rollout:
            raise failure
