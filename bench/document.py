"""Tables that commands write into documents, each between two marker lines."""

from pathlib import Path


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
