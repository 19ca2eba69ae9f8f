"""A measurement: images, latencies, and processor time by group of processes."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import psutil


class WrongAnswer(Exception):
    """A response was not 200, or had the wrong label, so its time must not be counted."""


@dataclass(slots=True)
class Measurement:
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


def median_ratio(over: Sequence[Measurement], under: Sequence[Measurement]) -> float:
    """The median over the rounds of one measurement's rate divided by another's of the same round.

    Rounds side by side see the same machine, so a neighbour that slows one round slows both of its measurements.
    """
    return statistics.median(a.rate / b.rate for a, b in zip(over, under, strict=True))


Groups = Mapping[str, Sequence[psutil.Process]]


def accounted(groups: Groups, measure: Callable[[], Measurement]) -> Measurement:
    """The result of `measure`, with the processor time that each group of processes, and all others, used meanwhile."""
    machine, before = _busy_seconds(), _seconds(groups)
    measurement = measure()
    after = _seconds(groups)
    measurement.cpu_seconds = {name: after[name] - before[name] for name in groups}
    measurement.others_cpu_seconds = max(0.0, _busy_seconds() - machine - sum(measurement.cpu_seconds.values()))
    return measurement


def _seconds(groups: Groups) -> dict[str, float]:
    return {name: sum(sum(process.cpu_times()[:2]) for process in processes) for name, processes in groups.items()}


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait)
