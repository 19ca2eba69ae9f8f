"""`gateway model add`: from a trained network to Triton's model repository."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gateway.command_line.addresses import Triton
from gateway.command_line.terminal import Repository, emit, print_status
from gateway.environment import load_settings
from gateway.errors import LoadFailed, UserError
from gateway.triton.contract import CLASSIFIER, ENSEMBLE_MODEL, SEQUENCE_MODEL
from gateway.values.clients import is_loopback
from gateway_local.hosts import authority
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from gateway_models.commands.group import explain_how_to_load, model_app, reload
from gateway_models.commands.places import takes_bucket
from gateway_models.commands.spec_options import takes_spec
from gateway_models.repository.spec import DEFAULT, ModelSpec

if TYPE_CHECKING:
    from gateway_models.repository.entry import Entry


@model_app.command("add")
@takes_bucket
@takes_spec
def add(spec: ModelSpec, *, address: Triton = None, model_repository: Repository = DEFAULT_MODEL_REPOSITORY) -> None:
    """Add a trained classifier: test it, append softmax or sigmoid if it has neither, and write it to the repository.

    SOURCE is a file of `torch.export.save(…)`, `torch.onnx.export(…)` or TorchScript, a folder or a name.
    A model that fails the checks is refused with the reason. Without --trust, no code in a file is executed.

        gateway model add flowers.pt --name flowers --labels labels.txt --like ResNet50_Weights.IMAGENET1K_V2

        gateway model add flowers.onnx --name flowers --labels labels.txt
            --resize 256 --crop 224 --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225

        gateway model add torchvision:resnet50 --name resnet50

        gateway model add torchvision:resnet50 --name flowers --labels labels.txt --weights state_dict.pth

        gateway model add better.pt --name flowers --version 2

        gateway model add torchvision:resnet50 --name vectors --embeddings

        gateway model add my_model.py:classify --name mine --labels labels.txt --crop 224 --trust

        gateway model add default
    """
    from gateway_local import elastic
    from gateway_models.networks.add import add as add_model
    from gateway_models.repository.manage import provide_stateful
    from gateway_models.repository.summary import added

    if stateful := spec.serving.sequence_model:
        provide_stateful(stateful, model_repository)
        reload(address, load=(stateful,))
    if spec.source == DEFAULT:
        _add_default(spec, model_repository, address)
        return
    entry = add_model(spec, model_repository, print_status)
    elastic.update(model_repository)
    _load(entry, model_repository, address, is_new=spec.version is None)
    settings = load_settings()
    service = f"http://{authority(settings.host, settings.port)}"
    added(entry, model_repository, spec.version or entry.in_use, service, address)
    explain_how_to_load(spec.name, address)


def add_to_serve(spec: ModelSpec, repository: Path, address: str | None) -> None:
    """Add the model of `gateway up SOURCE` unless it is there, and load it into a running Triton; raises UserError."""
    from gateway_local import elastic
    from gateway_local.paths import install_models
    from gateway_models.networks.add import add_changed

    if spec.source == DEFAULT:
        _add_default(spec, repository, address)
        return
    install_models(repository, print_status)
    entry, number, changed = add_changed(spec, repository, print_status)
    print_status(
        f"{entry.name} version {number} {'answers now' if changed else 'has these files and options already'}"
        f"{f'; the others are {sorted(entry.versions)}' if len(entry.versions) > 1 else ''}"
    )
    if changed:
        if address is not None:  # else the start that follows does it
            elastic.update(repository)
        _load(entry, repository, address, is_new=False)


def _add_default(spec: ModelSpec, repository: Path, address: str | None) -> None:
    """Write the model that comes with the project, unless it is there; raises UserError."""
    from gateway_local.paths import install_models
    from gateway_models.networks.export import export_default

    if set(spec.named) - {"source"}:
        raise typer.BadParameter(f"{DEFAULT} is the model that comes with the project: leave the model's options out")
    install_models(repository, print_status)
    emit(f"{ENSEMBLE_MODEL}: {export_default(repository, print_status)}")
    reload(address, load=(CLASSIFIER, ENSEMBLE_MODEL))


def _load(entry: "Entry", repository: Path, address: str | None, *, is_new: bool) -> None:
    """Load a model that was written into a Triton that runs, if there is an address; raises UserError."""
    from gateway.machine.memory import usable_memory
    from gateway.triton.footprint import check_load
    from gateway_models.repository.manage import provide_stateful

    # For the streams of every model. One that is there may be the user's own.
    stateful_models = () if (repository / SEQUENCE_MODEL).exists() else (SEQUENCE_MODEL,)
    for name in stateful_models:
        provide_stateful(name, repository)
    if address is not None and is_loopback(address):
        try:
            check_load(entry.name, repository, usable_memory())
        except LoadFailed as exc:
            raise UserError(
                f"{entry.name} is in {repository}, and Triton has not loaded it:", *str(exc).splitlines()
            ) from exc
    # Loading a new ensemble loads its steps; an existing step must be reloaded to get its new version.
    models = entry.ensembles if is_new else (entry.classifier, *entry.ensembles)
    reload(address, load=(*stateful_models, *models))
