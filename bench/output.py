"""What commands print: progress on stderr, and tables in Markdown, which they also write into documents."""

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

Progress = Callable[[str], None]
"""Called with a line of progress."""

Into = Annotated[
    Path | None, typer.Option("--write", help="Put the table into this document as well.", show_default=False)
]


class NoMarkers(Exception):
    """The document has no markers for the table; the message shows the lines to add."""


def progress(text: str) -> None:
    """Print a line of progress on stderr; stdout is for the tables."""
    print(f"bench | {text}", file=sys.stderr, flush=True)


def publish(text: str, into: Path | None, command: str) -> None:
    """Print a table, and put it into a document if there is one; raises NoMarkers."""
    print(text)
    if into is not None:
        put(into, command, text)


def put(document: Path, command: str, text: str) -> None:
    """Replace the table between a command's markers; raises NoMarkers."""
    begin, end = markers(command)
    before, found, rest = document.read_text().partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise NoMarkers(f"{document} has no lines {begin.strip()} and {end.strip()}: put them around the table")
    document.write_text(f"{before}{begin}{text}{end}{after}")


def markers(command: str) -> tuple[str, str]:
    """The lines around a command's table."""
    return f"<!-- {command}: begin -->\n", f"<!-- {command}: end -->\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)) + "\n"
