"""`gateway model list|show|remove|versions`: the models of a repository, and the version in use of each."""

from typing import Annotated

import typer

from gateway.environment import load_settings
from gateway.errors import UserError
from gateway_cli.addresses import Triton
from gateway_cli.model.group import Name, explain_how_to_load, model_app, reload
from gateway_cli.model.places import takes_bucket
from gateway_cli.terminal import Repository, emit, print_status
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY


@model_app.command("list")
@takes_bucket
def list_models(address: Triton = None, model_repository: Repository = DEFAULT_MODEL_REPOSITORY) -> None:
    """Show the models of the repository; with --triton, also which of them the Triton there has loaded."""
    from gateway_models.repository.manage import entries
    from gateway_models.repository.summary import listed

    if found := entries(model_repository):
        if address is None:
            listed(found)
            return
        from gateway_models.blocking_triton import BlockingTriton

        with BlockingTriton(address) as triton:
            loaded = triton.loaded()
        listed(found, loaded)
        return
    if not model_repository.is_dir() and model_repository != DEFAULT_MODEL_REPOSITORY:
        raise UserError(f"there is no model repository at {model_repository}")
    print_status(f"there are no models in {model_repository} that `gateway model add` wrote")


@model_app.command("show")
@takes_bucket
def show(name: Name, model_repository: Repository = DEFAULT_MODEL_REPOSITORY) -> None:
    """Show the details of a model."""
    from gateway_models.networks.model_source import labels_of
    from gateway_models.repository.entry import read_entry
    from gateway_models.repository.summary import shown

    entry = read_entry(model_repository, name)
    shown(entry, model_repository, labels_of(entry, model_repository, entry.in_use))


@model_app.command("remove")
@takes_bucket
def remove(
    name: Name,
    address: Triton = None,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
) -> None:
    """Delete a model from the repository, and with --triton from the Triton that serves it."""
    from gateway_models.repository.manage import check_removable
    from gateway_models.repository.manage import remove as remove_model

    entry = check_removable(model_repository, name, load_settings().model)
    reload(address, unload=entry.folders)
    emit(f"removed {name}: {', '.join(remove_model(entry, model_repository))}")


@model_app.command("versions")
@takes_bucket
def versions(
    name: Name,
    use: Annotated[
        int | None,
        typer.Option("--use", help="Put this version into use; an older one rolls back.", show_default=False),
    ] = None,
    drop: Annotated[
        int | None, typer.Option("--remove", help="Delete this version, which is not in use.", show_default=False)
    ] = None,
    address: Triton = None,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
) -> None:
    """Show a model's versions, or choose the one in use. With --triton, the Triton that serves it switches at once."""
    from gateway_models.repository.entry import read_entry
    from gateway_models.repository.manage import remove_version, use_version
    from gateway_models.repository.summary import versioned

    if use is not None:
        before = read_entry(model_repository, name).in_use
        use_version(model_repository, name, use)
        try:
            reload(address, load=(name,))
        except UserError:
            # Triton keeps serving the previous version; the repository must agree.
            use_version(model_repository, name, before)
            raise
    if drop is not None:
        entry, gone = remove_version(model_repository, name, drop)
        reload(address, load=(*entry.ensembles, entry.classifier), unload=gone)
    versioned(read_entry(model_repository, name))
    if use is not None or drop is not None:
        explain_how_to_load(name, address)
