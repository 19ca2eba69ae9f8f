"""`gateway doctor`: checks of the machine, the settings, the models and Triton, and of the running service."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.command_line.terminal import Repository, print_status
from gateway.environment import load_settings
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY, default_cache_dir

if TYPE_CHECKING:
    from gateway.findings import Finding


def doctor(
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
    *,
    run: Annotated[
        bool,
        typer.Option(
            "--run", help="Run the service for a minute: start, `model verify`, speed and costs (GATEWAY_COSTS)."
        ),
    ] = False,
    photo: Annotated[
        Path | None,
        typer.Option("--photo", help="JPEG that --run sends; by default the shipped one.", dir_okay=False, exists=True),
    ] = None,
) -> None:
    """Check the machine, settings, models and Triton; exits with 1 if a check fails.

    If GATEWAY_TRITON_URL is set, this checks that Triton instead of what `gateway up` needs.
    """
    from gateway.findings import Level
    from gateway_local.console import PlainConsole
    from gateway_local.doctor.report import examine, show, summary

    with PlainConsole(stderr=True).status("checking"):
        findings = list(examine(model_repository))
    if run and not any(finding.level is Level.FAIL for finding in findings):
        findings += _run_service(model_repository, photo)
    show(findings, PlainConsole())
    print_status(summary(findings))
    raise typer.Exit(any(finding.level is Level.FAIL for finding in findings))


def _run_service(model_repository: Path, photo: Path | None) -> "list[Finding]":
    from gateway_local.default_model import default_model
    from gateway_local.display import Display
    from gateway_local.paths import SAMPLE, SHIPPED_EXAMPLES
    from gateway_local.runtime.wheel import ensure_runtime
    from gateway_models.proof.prove import prove

    settings = load_settings()
    settings = settings.model_copy(update={"model": default_model(model_repository, settings)})
    runtime = ensure_runtime(default_cache_dir(), print_status)
    display = Display(log_file=Path(os.devnull))
    return list(prove(settings, model_repository, runtime, photo or SHIPPED_EXAMPLES / SAMPLE, display))
