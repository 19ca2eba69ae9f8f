"""`gateway prove`: a report on whether and how fast the service runs on this machine."""

import json
from pathlib import Path
from typing import Annotated

import typer

from gateway_cli.terminal import Repository, emit, print_status
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY


def prove(
    into: Annotated[
        Path | None,
        typer.Option("--into", help="Folder for prove.txt, prove.json and prove.html.", file_okay=False),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="How long images are sent.", min=1, max=3_600)] = 10.0,
    photo: Annotated[
        Path | None,
        typer.Option("--photo", help="JPEG to send; by default the shipped one.", dir_okay=False, exists=True),
    ] = None,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
) -> None:
    """Run the service here once, and report its devices, sizes, parity, speed, memory and recovery.

    On a GPU or a CPU, on free ports, in about a minute. Exits with 1 if a check fails. The report can be attached to an
    issue: it names the machine's hardware and the model, and no host.
    """
    from gateway.environment import load_settings
    from gateway_local.default_model import default_model
    from gateway_local.display import Lines
    from gateway_local.paths import SAMPLE, SHIPPED_EXAMPLES, default_cache_dir
    from gateway_local.runtime.wheel import ensure_runtime
    from gateway_models.proof.prove import prove as run

    settings = load_settings()
    name = default_model(model_repository, settings)
    runtime = ensure_runtime(default_cache_dir(), print_status)
    display = Lines(print_status, lambda _: None)
    settings = settings.model_copy(update={"model": name})
    proof = run(settings, model_repository, runtime, photo or SHIPPED_EXAMPLES / SAMPLE, display, seconds=seconds)
    lines = proof.as_text()
    emit(*lines)
    if into is not None:
        into.mkdir(parents=True, exist_ok=True)
        (into / "prove.txt").write_text("\n".join(lines) + "\n")
        (into / "prove.json").write_text(json.dumps(proof.as_json(), indent=2) + "\n")
        (into / "prove.html").write_text(proof.as_html())
        print_status(f"written: prove.txt, prove.json and prove.html in {into}")
    raise typer.Exit(not proof.passed)
