"""The table of the attacks' costs."""

from collections.abc import Iterable, Mapping

from bench.attack.measure import Cost
from bench.attack.registry import TITLES
from bench.output import table

HEADER = ["attack", "answer", "CPU s a request (allowed)", "memory, MB", "pause, ms", "p99 beside / before"]
HEADER += ["new client, s", "misses"]


def cells(cost: Cost) -> list[str]:
    """A row."""
    return [
        cost.attack.what,
        cost.answer,
        f"{cost.cpu_seconds:.1f} ({cost.allowed_seconds:.1f})",
        f"{cost.memory_bytes / 1e6:.0f}",
        f"{cost.pause_seconds * 1e3:.0f}" if cost.pause_seconds else "< 50",
        f"{cost.p99_ratio:.1f}",
        f"{cost.served_seconds:.1f}",
        ", ".join(cost.misses) or "–",
    ]


def tables(costs: Mapping[str, Iterable[Cost]]) -> str:
    """A table for each family."""
    return "\n".join(
        f"**{title}**\n\n{table(HEADER, map(cells, costs[family]))}"
        for family, title in TITLES.items()
        if family in costs
    )
