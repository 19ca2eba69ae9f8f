"""Output and options that several commands share."""

import contextlib
import os
from pathlib import Path
from typing import Annotated

import typer

from gateway.environment import SettingsError, load_settings
from gateway.plugin_loading import environment_of, hooks
from gateway.settings import Settings, given_variables
from gateway.values.variables import API_KEY
from gateway_client.visible import visible


def _of_the_settings(context: typer.Context, parameter: typer.CallbackParam, value: Path) -> Path:
    """The repository of the settings, unless the option names one."""
    source = context.get_parameter_source(parameter.name or "")
    if source is not None and source.name == "DEFAULT":
        with contextlib.suppress(SettingsError):  # which the command itself reports
            return load_settings().model_repository or value
    return value


Repository = Annotated[
    Path,
    typer.Option(
        "--model-repository",
        callback=_of_the_settings,
        help="Folder of Triton's models (GATEWAY_MODEL_REPOSITORY), by default triton_models.",
        file_okay=False,
        show_default=False,
    ),
]

Host = Annotated[str | None, typer.Option(help="Address that the API listens on (GATEWAY_HOST).")]
Port = Annotated[int | None, typer.Option(help="Port that the API listens on (GATEWAY_PORT).")]
Workers = Annotated[int | None, typer.Option(help="API processes (GATEWAY_WORKERS).")]

ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        envvar=API_KEY,
        help="API key, if the service requires one; also from the file .env.",
        callback=lambda given: given or given_variables().get(API_KEY),
    ),
]
ServiceModel = Annotated[str | None, typer.Option("--model", help="Model to use; by default the service's.")]


def settings_with(**options: object) -> Settings:
    """The settings, with the options of a command that are not None; raises SettingsError and UserError."""
    os.environ.update(environment_of({name: value for name, value in options.items() if value is not None}))
    settings = load_settings()
    # An invalid file must fail here, before Triton and the workers start.
    hooks(settings).check(settings)
    return settings


def emit(*lines: object) -> None:
    """Print lines of a result to stdout; line breaks within a line are escaped, like control characters."""
    typer.echo("\n".join(map(visible, lines)))


def print_status(text: str) -> None:
    """Print a status line to stderr, since stdout is for results; line breaks in it are escaped."""
    typer.echo(f"gateway | {visible(text)}", err=True)
