"""Measurements: images, latencies and processor time, and several of them made in turns.

The speed of a shared machine changes by half within minutes. So measurements that are compared take turns, in rounds
that alternate the order, and results are medians of the ratios within a round.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import psutil

from bench.output import Progress

Groups = Mapping[str, Sequence[psutil.Process]]
Measure = Callable[[float], "Measurement"]
"""Measures for a number of seconds."""


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
    counted: float = 0.0
    """The increase of a counter of the measured service."""

    @property
    def rate(self) -> float:
        """Images per second."""
        return self.images / self.seconds

    @property
    def others_cores(self) -> float:
        """How many cores everything else kept busy."""
        return self.others_cpu_seconds / self.seconds

    def cpu_milliseconds(self, group: str = "") -> float:
        """Processor milliseconds per image of a process group, or of all together."""
        seconds = self.cpu_seconds.get(group, 0.0) if group else sum(self.cpu_seconds.values())
        return 1e3 * seconds / self.images


class Ratio(NamedTuple):
    """A ratio of two series: the median of the rounds' ratios, the least and the greatest."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.least:.2f} – {self.most:.2f})"


class Series(list[Measurement]):
    """The measurements of one subject, one for each round."""

    @property
    def rate(self) -> float:
        """Images per second, the median of the rounds."""
        return statistics.median(each.rate for each in self)

    def cpu_milliseconds(self, group: str = "") -> float:
        """Processor milliseconds per image of a process group, or of all together; the median of the rounds."""
        return statistics.median(each.cpu_milliseconds(group) for each in self)

    def latency_milliseconds(self, percent: int) -> float:
        """A percentile of the requests' latencies: the median of the rounds, which have one each."""
        return 1e3 * statistics.median(percentile(each.latencies_seconds, percent) for each in self)

    def ratio(self, to: Sequence[Measurement], of: Callable[[Measurement], float] = lambda each: each.rate) -> Ratio:
        """The ratios of the rate, or of another figure, to the rate of another series."""
        ratios = [of(mine) / of(other) for mine, other in zip(self, to, strict=True)]
        return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def percentile(values: Sequence[float], percent: int) -> float:
    """The nearest-rank percentile of at least one value."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def in_turns(subjects: Mapping[str, Measure], seconds: float, rounds: int, progress: Progress) -> dict[str, Series]:
    """Measure each subject once a round, every second round in reverse order."""
    series = {name: Series() for name in subjects}
    for number in range(rounds):
        for name in list(subjects)[:: -1 if number % 2 else 1]:
            series[name].append(subjects[name](seconds))
            progress(f"round {number + 1} of {rounds}: {name}: {series[name][-1].rate:.1f}/s")
    return series


def accounted(groups: Callable[[], Groups], measure: Callable[[], Measurement]) -> Measurement:
    """The result of `measure`, with the processor time that each group of processes, and all others, used meanwhile.

    `groups` is called before and after, since a service may start processes meanwhile.
    """
    machine, before = busy_seconds(), _cpu_seconds(groups())
    measurement = measure()
    measurement.cpu_seconds = dict.fromkeys(groups(), 0.0)
    for process, (group, seconds) in _cpu_seconds(groups()).items():
        measurement.cpu_seconds[group] += seconds - before.get(process, (group, 0.0))[1]
    measurement.others_cpu_seconds = max(0.0, busy_seconds() - machine - sum(measurement.cpu_seconds.values()))
    return measurement


def _cpu_seconds(groups: Groups) -> dict[psutil.Process, tuple[str, float]]:
    used = {}
    for name, processes in groups.items():
        for process in processes:
            with suppress(psutil.Error):
                used[process] = (name, sum(process.cpu_times()[:2]))
    return used


def busy_seconds() -> float:
    """Processor time of the whole machine since its start."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait)
