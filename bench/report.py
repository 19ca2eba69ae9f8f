"""The figures as a table, as JSON and as a plot."""

import json
import statistics
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.parts import TITLES
from bench.scale import table as markdown
from bench.tally import Tally, median_ratio, percentile

WIDTH = 100
GROUPS = {"load": "client", **{name: name for name in ("gateway", "Triton", "preprocessor", "classifier")}}
"""The groups of processes with a column in the document's table, and the column's titles."""


@dataclass(frozen=True, slots=True)
class Report:
    """The tallies of every part, round by round, and how they were measured."""

    conditions: dict[str, object]
    rounds: dict[str, list[Tally]]

    def rate(self, part: str) -> float:
        """Images per second, the median of the rounds."""
        return statistics.median(tally.rate for tally in self.rounds[part])

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
        rounds = [tally.cpu_milliseconds() for tally in self.rounds[part]]
        return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}

    def cores(self, part: str) -> tuple[float, float]:
        """How many cores the part's processes fill and how many everything else, the medians of the rounds."""
        rounds = self.rounds[part]
        return statistics.median(t.cores_busy for t in rounds), statistics.median(t.others_cores for t in rounds)

    def latencies_milliseconds(self, part: str) -> tuple[float, float] | None:
        """Median and 99th percentile of a request's time; None if the part sends no requests."""
        latencies = [seconds for tally in self.rounds[part] for seconds in tally.latencies_seconds]
        return (1e3 * percentile(latencies, 50), 1e3 * percentile(latencies, 99)) if latencies else None

    def to_json(self) -> str:
        """Everything, for later comparison."""
        parts = {
            part: {
                "what": TITLES[part],
                "images_per_second": self.rate(part),
                "ratio_to_limit": self.ratio(part),
                "ratio_spread": self.spread(part),
                "request_milliseconds_p50_p99": self.latencies_milliseconds(part),
                "cpu_milliseconds_per_image": self.cpu_milliseconds(part),
                "cores_busy_own_others": self.cores(part),
                "rounds": [tally.rate for tally in tallies],
            }
            for part, tallies in self.rounds.items()
        }
        return json.dumps({**self.conditions, "parts": parts}, indent=2)

    def print(self) -> None:
        """Two tables on stdout: throughput, and the processor time behind it."""
        console = Console(width=max(Console().width, WIDTH))
        table = Table(title=f"{self.conditions['model']}: throughput, medians of {self.conditions['rounds']} rounds")
        table.add_column("")
        table.add_column("what")
        for heading in ("images/s", "share of (a)", "least – most", "p50 ms", "p99 ms"):
            table.add_column(heading, justify="right")
        for part in self.rounds:
            ratio, spread, latencies = self.ratio(part), self.spread(part), self.latencies_milliseconds(part)
            table.add_row(
                part,
                TITLES[part],
                f"{self.rate(part):.0f}",
                "" if ratio is None else f"{ratio:.2f}",
                "" if spread is None or part == "a" else f"{spread[0]:.2f} – {spread[1]:.2f}",
                *(("", "") if latencies is None else (f"{latencies[0]:.0f}", f"{latencies[1]:.0f}")),
            )
        console.print(table)
        costs = {part: self.cpu_milliseconds(part) for part in self.rounds}
        groups = list(dict.fromkeys(name for cost in costs.values() for name in cost))
        table = Table(title="processor milliseconds per image")
        table.add_column("")
        for heading in (*groups, "sum", "cores busy", "by others"):
            table.add_column(heading, justify="right")
        for part, cost in costs.items():
            cells = [f"{cost[name]:.2f}" if name in cost else "" for name in groups]
            table.add_row(part, *cells, f"{sum(cost.values()):.2f}", *(f"{cores:.2f}" for cores in self.cores(part)))
        console.print(table)

    def markdown(self) -> str:
        """Both tables as one, for a document."""
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
        others = max(self.cores(part)[1] for part in self.rounds)
        rounds, seconds, cores = (self.conditions[name] for name in ("rounds", "seconds", "cores"))
        said = f"Rounds: {rounds} of {seconds:g} s each, on {cores} cores"
        return f"{markdown(header, rows)}\n{said}; others filled {others:.1f} of them at most.\n"

    def save(self, folder: Path, name: str) -> list[Path]:
        """Write NAME.json and NAME.png."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{name}.json", folder / f"{name}.png"]
        paths[0].write_text(self.to_json() + "\n")
        self._plot(paths[1])
        return paths

    def _plot(self, path: Path) -> None:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt

        figure, axes = plt.subplots(figsize=(8, 0.7 * len(self.rounds) + 1.6), layout="constrained")
        names = [f"({part}) {TITLES[part]}" for part in self.rounds]
        rates = [self.rate(part) for part in self.rounds]
        bars = axes.barh(names, rates, color=["#9aa0a6" if part == "a" else "#1a73e8" for part in self.rounds])
        ratios = [self.ratio(part) for part in self.rounds]
        texts = [
            f" {rate:.0f}" + ("" if ratio is None or part == "a" else f"  ({ratio:.2f} of a)")
            for part, rate, ratio in zip(self.rounds, rates, ratios, strict=True)
        ]
        axes.bar_label(bars, texts)
        for row, part in enumerate(self.rounds):
            # Every round as a dot, to show the variation between rounds.
            axes.plot([t.rate for t in self.rounds[part]], [row] * len(self.rounds[part]), "k.", markersize=3)
        axes.invert_yaxis()
        axes.margins(x=0.25)
        axes.set_xlim(left=0)
        axes.set_xlabel("images per second")
        axes.set_title(f"{self.conditions['model']}, {self.conditions['cores']} cores")
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, dpi=120)
        plt.close(figure)
