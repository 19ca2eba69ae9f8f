"""What the commands share: a line of progress, and options that several have."""

from pathlib import Path
from typing import Annotated

import typer

from gateway_client.visible import visible, visible_lines

Repository = Annotated[
    Path,
    typer.Option(
        "--model-repository",
        help="Folder with Triton's models; by default the project's triton_models.",
        file_okay=False,
        show_default=False,
    ),
]


def emit(*lines: object) -> None:
    """Lines of a result, on stdout; a line break within one of them is escaped, as control characters are."""
    typer.echo("\n".join(map(visible, lines)))


def say(text: str) -> None:
    """A line of progress, on stderr so that stdout stays for results."""
    typer.echo(f"gateway | {visible_lines(text)}", err=True)
