"""The table of what attacks cost, and its place in a document."""

from collections.abc import Iterable
from pathlib import Path

from bench.attack.measure import Cost

BEGIN, END = "<!-- make attack: begin -->\n", "<!-- make attack: end -->\n"
HEAD = """\
| attack | answer | CPU s a request | memory, MB | longest pause, ms | p99 beside it / before | misses |
|---|---|---|---|---|---|---|
"""


class NoMarkers(Exception):
    """The document has no place for the table; the message says what it needs."""


def row(cost: Cost) -> str:
    """One line, without its end."""
    pause = f"{cost.pause_seconds * 1e3:.0f}" if cost.pause_seconds else "< 50"
    cells = (
        cost.attack.what,
        cost.answer,
        f"{cost.cpu_seconds:.1f}",
        f"{cost.memory_bytes / 1e6:.0f}",
        pause,
        f"{cost.p99_ratio:.1f}",
        ", ".join(cost.misses) or "–",
    )
    return f"| {' | '.join(cells)} |"


def table(costs: Iterable[Cost]) -> str:
    """All lines, in Markdown."""
    return HEAD + "".join(f"{row(cost)}\n" for cost in costs)


def write(document: Path, costs: Iterable[Cost]) -> None:
    """Put the table in the place of the one between the document's markers; raises NoMarkers."""
    text = document.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise NoMarkers(f"{document} has no lines {BEGIN.strip()} and {END.strip()}: put them around the table")
    document.write_text(f"{before}{begin}{table(costs)}{end}{after}")
