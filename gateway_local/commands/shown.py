"""How a start is shown."""

import os
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
    """Stages, with Triton's log in a file, on a terminal; else, or with --verbose, every line; or events in JSON."""
    from gateway_local.live import log_path
    from gateway_local.table import Shown

    if settings.log_format is LogFormat.JSON:
        return Shown("json")
    if verbose or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return Shown("verbose" if verbose else "lines")
    return Shown("live", log_path(settings.port))
