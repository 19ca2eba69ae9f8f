"""Options that several benchmarks have."""

from pathlib import Path
from typing import Annotated

import typer

Beside = Annotated[list[Path] | None, typer.Option(help="Another checkout, to compare with; repeatable.", exists=True)]
