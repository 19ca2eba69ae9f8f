"""The table of what attacks cost."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from bench.attack.measure import Cost
from bench.output import put

HEAD = """\
| attack | answer | CPU s a request (allowed) | memory, MB | pause, ms | p99 beside / before | new client, s | misses |
|---|---|---|---|---|---|---|---|
"""
TITLES = {
    "pictures": "One costly picture, or some",
    "n-fold": "As many of each as one request may have, up to 20 MB and 1,000 files",
    "costs": "Sums of costly files in one request",
    "parsers": "Bytes that are cheap to send",
    "errors": "Clients' errors",
    "clients": "Clients that are slow, leave, or are many",
    "connections": "Connections of one client",
    "streams": "Streams; CPU s a second",
    "cache": "Another client's answer",
    "killers": "Processes",
    "fleet": "Processes of three Tritons",
}


def row(cost: Cost) -> str:
    """One line, without its end."""
    pause = f"{cost.pause_seconds * 1e3:.0f}" if cost.pause_seconds else "< 50"
    cells = (
        cost.attack.what,
        cost.answer,
        f"{cost.cpu_seconds:.1f} ({cost.allowed_seconds:.1f})",
        f"{cost.memory_bytes / 1e6:.0f}",
        pause,
        f"{cost.p99_ratio:.1f}",
        f"{cost.served_seconds:.1f}",
        ", ".join(cost.misses) or "–",
    )
    return f"| {' | '.join(cells)} |"


def table(costs: Mapping[str, Iterable[Cost]]) -> str:
    """A table for each family, in Markdown."""
    return "\n".join(
        "".join([f"**{title}**\n\n", HEAD, *(f"{row(cost)}\n" for cost in costs[family])])
        for family, title in TITLES.items()
        if family in costs
    )


def write(document: Path, costs: Mapping[str, Iterable[Cost]]) -> None:
    """Put the tables into a document; raises NoMarkers."""
    put(document, "make attack", table(costs))
