"""Services that are compared: all run, each is paused but for its turn, and each gets the same loads.

The loads and services of a comparison make one table, which `cost_table` prints with the processor time of each stage.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from bench.http_load import HttpLoad, labelled
from bench.measurement import Measure, Measurement, Series, accounted, in_turns
from bench.output import Progress, table
from bench.photos import Photo, coffee, resized
from bench.remote import Remote
from bench.services import Service

OURS = "this service"
STAGES = ("gateway", "Triton", "preprocessor", "classifier")
SINGLES_IN_FLIGHT = 32
"""Requests in flight during the warm-up, and when a service gets many files as single uploads."""
WARM_UP_SECONDS = 12.0
"""Before the first measurement of a service: longer than the gateway caches Triton's statistics."""
TURN_WARM_UP_SECONDS = 1.0
"""After each pause of a service, at most as long as the measurement."""


@dataclass(frozen=True, slots=True)
class Load:
    """A number of requests in flight, with the same number of files each."""

    title: str
    in_flight: int
    files: int = 1
    size: tuple[int, int, int] | None = None
    """Width, height and JPEG quality of the photograph; None for the default one of 600 × 400."""


class Subject(Protocol):
    """What is measured."""

    def measure(self, load: Load, seconds: float, count: Callable[[Service], float] | None = None) -> Measurement:
        """Measure a load for some seconds; `count` reads a counter of a service, whose increase is measured too."""


Measured = Mapping[Load, Mapping[str, Series]]
"""The measurements of each load by service."""


@dataclass
class Candidate:
    """A paused service, and the process that sends to it."""

    service: Service
    sender: Remote
    one_file: bool = False
    """Whether a request may have one file only: several files are then sent as single uploads."""
    _photos: dict[tuple[int, int, int] | None, Photo] = field(default_factory=dict)

    def measure(self, load: Load, seconds: float, count: Callable[[Service], float] | None = None) -> Measurement:
        """Resume the service, warm it up, measure it, and pause it again; raises WrongAnswer or ServiceFailed."""
        single = load.files > 1 and self.one_file
        in_flight, files = (SINGLES_IN_FLIGHT, 1) if single else (load.in_flight, load.files)
        with self.service.turn():
            photo = self.photo(load.size)
            self.sender.call("run", photo, min(TURN_WARM_UP_SECONDS, seconds), in_flight, files)
            before = count(self.service) if count else 0.0
            measurement = accounted(
                self.service.groups, lambda: self.sender.call("run", photo, seconds, in_flight, files)
            )
            measurement.counted = count(self.service) - before if count else 0.0
            return measurement

    def photo(self, size: tuple[int, int, int] | None = None) -> Photo:
        """A load's photograph with the label that this service gives it; the service is not paused."""
        if size not in self._photos:
            self._photos[size] = labelled(self.service.url, resized(coffee(), *size) if size else coffee())
        return self._photos[size]


def started(
    stack: ExitStack,
    services: Mapping[str, AbstractContextManager[Service]],
    progress: Progress,
    one_file: tuple[str, ...] = (),
) -> dict[str, Candidate]:
    """Start services one by one, warm each up, and pause it; `one_file` names services that take one file a request."""
    candidates = {}
    for name, start in services.items():
        progress(f"starting {name}")
        service = stack.enter_context(start)
        candidate = Candidate(service, stack.enter_context(Remote(HttpLoad, service.url)), name in one_file)
        photo = candidate.photo()
        progress(f"warming up {name}, which classifies {photo.name} as {photo.label!r}")
        candidate.sender.call("run", photo, WARM_UP_SECONDS, SINGLES_IN_FLIGHT, 1)
        service.pause()
        candidates[name] = candidate
    return candidates


def compare(
    candidates: Mapping[str, Subject],
    loads: list[Load],
    seconds: float,
    rounds: int,
    progress: Progress,
    count: Callable[[Service], float] | None = None,
) -> dict[Load, dict[str, Series]]:
    """Measure each load with each candidate, in turns."""
    subjects: dict[str, Measure] = {}
    for load in loads:
        for name, candidate in candidates.items():
            subjects[f"{name}, {load.title}"] = partial(candidate.measure, load, count=count)
    measured = in_turns(subjects, seconds, rounds, progress)
    return {load: {name: measured[f"{name}, {load.title}"] for name in candidates} for load in loads}


def cost_table(measured: Measured, base: str, counter: str = "") -> str:
    """Images per second, latencies and processor time of each stage; ratios are to the service named `base`.

    `counter` is the title of the counter's column, which has its increase per image.
    """
    stages = [
        stage
        for stage in STAGES
        if any(each[name][0].cpu_seconds.get(stage) for each in measured.values() for name in each)
    ]
    header = ["load", "service", "images/s", f"× {base}", "images/s a core", *([counter] if counter else [])]
    header += ["p50, p99", *(f"CPU: {stage}" for stage in stages), "CPU an image", f"× {base}"]
    rows = []
    for load, services in measured.items():
        for name, series in services.items():
            cost, first = series.cpu_milliseconds(), services[base]
            latencies = (series.latency_milliseconds(percent) for percent in (50, 99))
            ratios = ("1", "1")
            if name != base:
                ratios = (str(series.ratio(first)), str(series.ratio(first, lambda each: each.cpu_milliseconds())))
            rows.append(
                [
                    load.title,
                    name,
                    f"{series.rate:.0f}",
                    ratios[0],
                    f"{1e3 / cost:.0f}",
                    *([f"{sum(each.counted / each.images for each in series) / len(series):.2f}"] if counter else []),
                    " , ".join(f"{latency:.0f}" for latency in latencies).replace(" ,", ",") + " ms",
                    *(f"{series.cpu_milliseconds(stage):.2f} ms" for stage in stages),
                    f"{cost:.2f} ms",
                    ratios[1],
                ]
            )
    return table(header, rows)
