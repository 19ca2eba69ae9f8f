"""Options that several benchmarks have."""

from pathlib import Path
from typing import Annotated

import typer

Beside = Annotated[list[Path] | None, typer.Option(help="Another checkout, to compare with; repeatable.", exists=True)]

Into = Annotated[
    Path | None, typer.Option("--write", help="Put the table into this document as well.", show_default=False)
]
"""The document that contains the command's table, between marker lines."""
