"""The table of what attacks cost."""

from collections.abc import Iterable
from pathlib import Path

from bench.attack.measure import Cost
from bench.document import put

HEAD = """\
| attack | answer | CPU s a request | memory, MB | longest pause, ms | p99 beside it / before | misses |
|---|---|---|---|---|---|---|
"""


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
    """Put the table into a document; raises NoMarkers."""
    put(document, "make attack", table(costs))
