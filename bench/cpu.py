"""Processor time by group of processes."""

from collections.abc import Callable, Mapping, Sequence

import psutil

from bench.tally import Tally

Groups = Mapping[str, Sequence[psutil.Process]]


def accounted(groups: Groups, measure: Callable[[], Tally]) -> Tally:
    """The result of `measure`, with the processor time that each group of processes, and all others, used meanwhile."""
    machine, before = _busy_seconds(), _seconds(groups)
    tally = measure()
    after = _seconds(groups)
    tally.cpu_seconds = {name: after[name] - before[name] for name in groups}
    tally.others_cpu_seconds = max(0.0, _busy_seconds() - machine - sum(tally.cpu_seconds.values()))
    return tally


def _seconds(groups: Groups) -> dict[str, float]:
    return {name: sum(sum(process.cpu_times()[:2]) for process in processes) for name, processes in groups.items()}


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return sum(times) - times.idle - times.iowait
