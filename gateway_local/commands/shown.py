"""How a start is shown."""

import sys
from typing import Annotated, Any

import typer

from gateway.settings import LogFormat, Settings

Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Show Triton's log here instead of keeping it in a file."),
]


def shown(settings: Settings, *, verbose: bool) -> dict[str, Any]:
    """The arguments of Display.

    On a terminal Triton's log goes to a file; else, or with --verbose, it is shown; or events in JSON.
    """
    from gateway_local.display import log_path

    if settings.log_format is LogFormat.JSON:
        return {"as_json": True}
    if verbose or not sys.stderr.isatty():
        return {"tables": verbose}
    return {"log_file": log_path(settings.port)}
