"""`gateway model calibrate`: scores that say how often answers are right, as a step in a new version."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.command_line.addresses import Triton
from gateway.command_line.terminal import Repository, emit, print_status
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from gateway_models.commands.group import Name, explain_how_to_load, model_app, reload
from gateway_models.commands.postprocess import emit_next_steps
from gateway_models.commands.proof import Version

if TYPE_CHECKING:
    from gateway_models.proof.calibrate import Calibrated


@model_app.command("calibrate")
def calibrate(
    name: Name,
    data: Annotated[
        Path,
        typer.Argument(help="Labelled images, none from training: a folder for each class, or a CSV of path,label."),
    ],
    version: Version = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", help="PNG file for the reliability diagram, by default NAME-calibration.png.", dir_okay=False
        ),
    ] = None,
    address: Triton = None,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure only, without a new version.")] = False,
) -> None:
    """Fit a temperature to a model's scores, and add it as a new version.

    A calibrated model that answers with a score of 0.8 is right in 80 % of such cases. The top class stays the same.
    The version is not put into use. Exits with 1 if the scores do not improve.

        gateway model calibrate flowers photos/calibration

        gateway model evaluate flowers photos/test --version 2
    """
    from gateway_models.networks.add import add_step
    from gateway_models.networks.model_source import network_labels
    from gateway_models.proof.calibrate import calibrate as run
    from gateway_models.proof.calibrate import check_calibration, scored
    from gateway_models.proof.dataset import read_dataset
    from gateway_models.proof.image_files import reasons
    from gateway_models.proof.plots import reliability
    from gateway_models.proof.serving import classified
    from gateway_models.repository.after import DeclaredStep
    from gateway_models.repository.manage import entry_with_version

    entry = entry_with_version(model_repository, name, version)
    base = version or entry.in_use
    check_calibration(entry, base)
    samples = read_dataset(data, network_labels(entry, model_repository))
    answers, refused = classified(samples, entry, (base,), model_repository, print_status, url=address)
    for line in reasons(refused):
        print_status(f"left out: {line}")
    found = run(scored(answers))
    diagram = plot or Path(f"{name}-calibration.png")
    reliability(
        [("before", found.before), ("after", found.after)], f"Calibration of {name}, version {base}, on {data}", diagram
    )
    number = None
    if found.helps and not dry_run:
        step = DeclaredStep(temperature=found.temperature)
        entry, number = add_step(step, model_repository, name, base, print_status)
        reload(address, load=entry.ensembles)
    _report(found)
    emit(f"reliability diagram: {diagram}")
    if not found.helps:
        print_status("the scores of the images held out are not better, so there is no new version")
        raise typer.Exit(1)
    if number is not None:
        emit(f"{name} version {number}: the network of version {entry.network_of(number)} with calibrated scores")
        emit_next_steps(name, number, model_repository)
        explain_how_to_load(name, address)


def _report(found: "Calibrated") -> None:
    """Print each measure before and after, and the fitted temperature."""
    from gateway_models.repository.summary import Report

    rows = [
        ("expected calibration error", *(f"{each.error:.4f}" for each in (found.before, found.after))),
        ("log loss", *(f"{loss:.4f}" for loss in found.log_loss)),
    ]
    sure = "more" if found.temperature > 1 else "less"
    facts = {
        "top-1": f"{100 * found.top_1:.2f} %, fitted on {found.fitted_on} images, shown on {found.held_out} others",
        "temperature": f"{found.temperature:.4f}: the network was {sure} sure than it was right",
    }
    Report(("of the images held out", "before", "after"), rows, facts=facts).print()
