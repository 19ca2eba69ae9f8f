"""`gateway model explain`: a heat map of the parts of an image that carry the score of a class."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gateway_cli.model.group import model_app
from gateway_cli.terminal import Repository, emit, print_status
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY


class Method(StrEnum):
    """How an image is explained; gateway_models.proof.explain has the methods."""

    GRAD_CAM = "grad-cam"
    INTEGRATED_GRADIENTS = "integrated-gradients"


@model_app.command("explain")
def explain(
    image: Annotated[Path, typer.Argument(help="The image.", exists=True, dir_okay=False, show_default=False)],
    model: Annotated[
        str | None, typer.Option("--model", help="Model to explain; by default GATEWAY_MODEL.", show_default=False)
    ] = None,
    version: Annotated[
        int | None, typer.Option("--version", help="Version; by default the one in use.", min=1, show_default=False)
    ] = None,
    label: Annotated[
        str | None,
        typer.Option("--label", help="Class to explain, or its number; by default the likeliest.", show_default=False),
    ] = None,
    method: Annotated[
        Method, typer.Option("--method", help="grad-cam needs visible modules, so no TorchScript.")
    ] = Method.INTEGRATED_GRADIENTS,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="PNG of the image with the map; by default IMAGE-explained.png here.", dir_okay=False
        ),
    ] = None,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print the map as JSON; write a PNG only with --out.")] = False,
) -> None:
    """Show which parts of an image carry the score of a class, by the gradients of the network that was added.

    The page and POST /explain do so for any served model, by masked copies of the image.

        gateway model explain cat.jpg --label "Egyptian cat" --method grad-cam
    """
    from gateway.environment import load_settings
    from gateway_local.default_model import default_model
    from gateway_models.networks.model_source import network_labels
    from gateway_models.proof.explain import explain as run
    from gateway_models.repository.manage import entry_with_version

    entry = entry_with_version(model_repository, model or default_model(model_repository, load_settings()), version)
    labels = network_labels(entry, model_repository)
    found = run(entry, version or entry.in_use, image, method.value, labels, label)
    if json:
        typer.echo(found.as_json())
    else:
        emit(f"{found.label} (class {found.class_id}): {found.score:.4f}, {found.model} version {found.version}")
    target = out or (None if json else Path(f"{image.stem}-explained.png"))
    if target is not None:
        found.picture().save(target, "PNG")
        print_status(f"wrote {target}")
