"""What one measurement counts."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


class WrongAnswer(Exception):
    """A response was not 200, or had the wrong label, so its time must not be counted."""


@dataclass(slots=True)
class Tally:
    """Images answered in `seconds`, and how long each request took."""

    images: int = 0
    seconds: float = 0.0
    latencies_seconds: list[float] = field(default_factory=list)
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    """Processor time by the process group that used it."""
    others_cpu_seconds: float = 0.0
    """Processor time that everything else on the machine used meanwhile."""

    @property
    def rate(self) -> float:
        """Images per second."""
        return self.images / self.seconds

    @property
    def cores_busy(self) -> float:
        """How many cores the measured processes filled."""
        return sum(self.cpu_seconds.values()) / self.seconds

    @property
    def others_cores(self) -> float:
        """How many cores everything else filled, which were missing here."""
        return self.others_cpu_seconds / self.seconds

    def cpu_milliseconds(self) -> dict[str, float]:
        """Processor milliseconds per image by process group."""
        return {name: 1e3 * seconds / self.images for name, seconds in self.cpu_seconds.items()}


def percentile(values: Sequence[float], percent: int) -> float:
    """The nearest-rank percentile of at least one value."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def median_ratio(over: Sequence[Tally], under: Sequence[Tally]) -> float:
    """The median over the rounds of one measurement's rate divided by another's of the same round.

    Rounds side by side see the same machine, so a neighbour that slows one round slows both of its measurements.
    """
    return statistics.median(a.rate / b.rate for a, b in zip(over, under, strict=True))
