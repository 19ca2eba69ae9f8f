"""Tables in Markdown, which commands print and write into documents between two marker lines."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

Beside = Annotated[list[Path] | None, typer.Option(help="Another checkout, to compare with; repeatable.", exists=True)]

Into = Annotated[
    Path | None, typer.Option("--write", help="Put the table into this document as well.", show_default=False)
]
"""The document that contains the command's table, between marker lines."""


class NoMarkers(Exception):
    """The document has no markers for the table; the message shows the lines to add."""


def put(document: Path, command: str, table: str) -> None:
    """Replace the table between a command's markers; raises NoMarkers."""
    begin, end = f"<!-- {command}: begin -->\n", f"<!-- {command}: end -->\n"
    text = document.read_text()
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise NoMarkers(f"{document} has no lines {begin.strip()} and {end.strip()}: put them around the table")
    document.write_text(f"{before}{begin}{table}{end}{after}")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)) + "\n"
