"""How a start is shown."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.settings import LogFormat, Settings

if TYPE_CHECKING:
    from gateway_local.table import Shown

Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Show Triton's log here instead of keeping it in a file."),
]


def shown(settings: Settings, *, verbose: bool) -> "Shown":
    """On a terminal Triton's log goes to a file; else, or with --verbose, it is shown; or events in JSON."""
    from gateway_local.display import log_path
    from gateway_local.table import Shown

    if settings.log_format is LogFormat.JSON:
        return Shown(as_json=True)
    if verbose or not sys.stderr.isatty():
        return Shown(tables=verbose)
    return Shown(log=log_path(settings.port))
