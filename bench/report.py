"""The table of `make bench`: throughput, and the processor time behind it."""

import statistics
from dataclasses import dataclass

from bench.measurement import Measurement, median_ratio, percentile
from bench.parts import TITLES
from bench.tables import table

GROUPS = {"load": "client", **{name: name for name in ("gateway", "Triton", "preprocessor", "classifier")}}
"""The groups of processes with a column in the document's table, and the column's titles."""


@dataclass(frozen=True, slots=True)
class Report:
    """The measurements of every part, round by round, and how they were measured."""

    seconds: float
    """The length of each measurement."""
    cores: int
    rounds: dict[str, list[Measurement]]

    def rate(self, part: str) -> float:
        """Images per second, the median of the rounds."""
        return statistics.median(measurement.rate for measurement in self.rounds[part])

    def ratio(self, part: str) -> float | None:
        """The part's rate as a share of (a)'s in the same round, the median of the rounds; None without (a)."""
        return median_ratio(self.rounds[part], self.rounds["a"]) if "a" in self.rounds else None

    def spread(self, part: str) -> tuple[float, float] | None:
        """The least and the greatest of the rounds' ratios."""
        if "a" not in self.rounds:
            return None
        ratios = [mine.rate / limit.rate for mine, limit in zip(self.rounds[part], self.rounds["a"], strict=True)]
        return min(ratios), max(ratios)

    def cpu_milliseconds(self, part: str) -> dict[str, float]:
        """Processor milliseconds per image by process group, the median of the rounds."""
        rounds = [measurement.cpu_milliseconds() for measurement in self.rounds[part]]
        return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}

    def cores_filled(self, part: str) -> tuple[float, float]:
        """How many cores the part's processes fill and how many everything else, the medians of the rounds."""
        rounds = self.rounds[part]
        return statistics.median(t.cores_busy for t in rounds), statistics.median(t.others_cores for t in rounds)

    def latencies_milliseconds(self, part: str) -> tuple[float, float] | None:
        """Median and 99th percentile of a request's time; None if the part sends no requests."""
        latencies = [seconds for measurement in self.rounds[part] for seconds in measurement.latencies_seconds]
        return (1e3 * percentile(latencies, 50), 1e3 * percentile(latencies, 99)) if latencies else None

    def markdown(self) -> str:
        """Throughput and processor time, a row for each part."""
        costs = {part: self.cpu_milliseconds(part) for part in self.rounds}
        groups = [name for name in GROUPS if any(name in cost for cost in costs.values())]
        header = ["", "images/s", "share of (a)", "least – most", "p50, p99"]
        header += [f"CPU: {GROUPS[name]}" for name in groups] + ["in all", "share of (a)"]
        limit = sum(costs["a"].values()) if "a" in costs else 0.0
        rows = []
        for part, cost in costs.items():
            ratio, spread, latencies = self.ratio(part), self.spread(part), self.latencies_milliseconds(part)
            in_all = sum(cost.values())
            rows.append(
                [
                    f"({part}) {TITLES[part]}",
                    f"{self.rate(part):.0f}",
                    "" if ratio is None else f"{ratio:.2f}",
                    "" if spread is None or part == "a" else f"{spread[0]:.2f} – {spread[1]:.2f}",
                    "" if latencies is None else f"{latencies[0]:.0f}, {latencies[1]:.0f} ms",
                    *(f"{cost[name]:.2f} ms" if name in cost else "" for name in groups),
                    f"{in_all:.2f} ms",
                    f"{limit / in_all:.2f}" if limit else "",
                ]
            )
        others = max(self.cores_filled(part)[1] for part in self.rounds)
        rounds = max(map(len, self.rounds.values()))
        conditions = f"Rounds: {rounds} of {self.seconds:g} s each, on {self.cores} cores"
        return f"{table(header, rows)}\n{conditions}; others filled {others:.1f} of them at most.\n"
