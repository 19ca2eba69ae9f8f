"""`gateway model explain`: a heat map of the parts of an image that carry the score of a class."""

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway_cli.addresses import gateway_url
from gateway_cli.model.group import GatewayKey, model_app
from gateway_cli.terminal import Repository, emit, print_status
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from gateway_models.proof.explain_method import ExplainMethod

if TYPE_CHECKING:
    from gateway_models.proof.explain import Explained


@model_app.command("explain")
def explain(
    image: Annotated[Path, typer.Argument(help="The image.", exists=True, dir_okay=False, show_default=False)],
    model: Annotated[
        str | None, typer.Option("--model", help="Model to explain; by default the service's.", show_default=False)
    ] = None,
    version: Annotated[
        int | None, typer.Option("--version", help="Version; by default the one in use.", min=1, show_default=False)
    ] = None,
    label: Annotated[
        str | None, typer.Option("--label", help="Class to explain; by default the likeliest one.", show_default=False)
    ] = None,
    class_id: Annotated[
        int | None, typer.Option("--class-id", help="Class to explain, instead of --label.", min=0, show_default=False)
    ] = None,
    method: Annotated[
        ExplainMethod,
        typer.Option(
            "--method",
            help="rise and occlusion classify masked copies, for any model; grad-cam and integrated-gradients need the "
            "network of torch that was added.",
        ),
    ] = ExplainMethod.RISE,
    masks: Annotated[
        int | None, typer.Option("--masks", help="Masked copies, for rise; 500 by default.", min=1, show_default=False)
    ] = None,
    grid: Annotated[
        int | None,
        typer.Option("--grid", help="Cells of a mask on each side; by default 8, or 14.", min=2, show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="PNG of the image with the map; by default IMAGE-explained.png here.", dir_okay=False
        ),
    ] = None,
    gateway: Annotated[
        str | None,
        typer.Option(
            "--gateway",
            metavar="URL",
            help="A running service; by default one of its own.",
            show_default=False,
            callback=gateway_url,
        ),
    ] = None,
    api_key: GatewayKey = None,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print the map as JSON; write a PNG only with --out.")] = False,
) -> None:
    """Show which parts of an image carry the score of a class: a heat map over the image.

    A service classifies copies of the image with hidden parts, or the network's gradients are computed here.

        gateway model explain cat.jpg --gateway http://127.0.0.1:8080

        gateway model explain cat.jpg --label "Egyptian cat" --method grad-cam
    """
    if label is not None and class_id is not None:
        raise typer.BadParameter("name the class by --label or by --class-id, not by both")
    if masks is not None and method is not ExplainMethod.RISE:
        raise typer.BadParameter(f"--masks is for --method rise, and not for {method.value}")
    if method.by_gradients:
        if gateway is not None or grid is not None:
            raise typer.BadParameter(f"--method {method.value} excludes --gateway and --grid: it runs the network here")
        wanted = label if class_id is None else class_id
        found = _by_gradients(image, model, version, method, wanted, model_repository)
    else:
        given = {
            "model": model,
            "version": version,
            "label": label,
            "class_id": class_id,
            "method": method.value,
            "masks": masks,
            "grid": grid,
        }
        parameters = {name: value for name, value in given.items() if value is not None}
        found = _by_masks(image, parameters, gateway, api_key, model_repository)
    if json:
        typer.echo(found.as_json())
    else:
        emit(f"{found.label} (class {found.class_id}): {found.score:.4f}, {found.model} version {found.version}")
    target = out or (None if json else Path(f"{image.stem}-explained.png"))
    if target is not None:
        found.picture(image).save(target, "PNG")
        print_status(f"wrote {target}")


def _by_masks(
    image: Path, parameters: dict[str, str | int], gateway: str | None, api_key: str | None, repository: Path
) -> "Explained":
    from gateway_cli.own_service import own_service
    from gateway_models.proof.explain import explain_by_masks

    own = gateway is None
    service: AbstractContextManager[str] = own_service(repository, print_status) if own else nullcontext(gateway or "")
    with service as url:
        return explain_by_masks(url, image, parameters, api_key, _progress)


def _by_gradients(
    image: Path,
    model: str | None,
    version: int | None,
    method: ExplainMethod,
    wanted: str | int | None,
    repository: Path,
) -> "Explained":
    from gateway.environment import load_settings
    from gateway_local.default_model import default_model
    from gateway_models.networks.model_source import network_labels
    from gateway_models.proof.explain import explain_by_gradients
    from gateway_models.repository.manage import entry_with_version

    entry = entry_with_version(repository, model or default_model(repository, load_settings()), version)
    labels = network_labels(entry, repository)
    return explain_by_gradients(entry, version or entry.in_use, image, method, labels, wanted)


def _progress(done: int, total: int) -> None:
    """Show the progress in place, on a terminal only."""
    if sys.stderr.isatty():
        typer.echo(f"\rgateway | {done} of {total} masked copies", err=True, nl=done == total)
