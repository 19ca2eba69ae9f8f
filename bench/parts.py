"""The measured parts: five ways to classify the same photographs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from bench.grpc_load import GrpcLoad
from bench.http_load import HttpLoad
from bench.measurement import Measurement, accounted
from bench.photos import Photo
from bench.remote import Remote
from bench.servers import Service

FILES_IN_BULK = 200

TITLES = {
    "a": "bare processes in a loop",
    "b": "gRPC straight to the ensemble",
    "c": "POST /predict, one file",
    "d": f"POST /predict, {FILES_IN_BULK} files",
    "e": "one photo again and again, cache on",
}

Part = Callable[[float], Measurement]
"""Measures for so many seconds."""


class Limit:
    """(a): a bare loop in each of several processes, with the batch size that is fastest here."""

    def __init__(self, processes: Sequence[Remote], photos: list[Photo]) -> None:
        self._processes = processes
        labels = processes[0].call("label", photos)
        self.photos = [replace(photo, label=label) for photo, label in zip(photos, labels, strict=True)]
        # All at once, as they will run.
        sizes = _together(processes, "best_batch_size", photos)
        self.batch_size: int = sorted(sizes)[len(sizes) // 2]

    def __call__(self, seconds: float) -> Measurement:
        """The sum of all processes."""
        groups = {"bare": [psutil.Process(process.pid) for process in self._processes]}
        return accounted(groups, lambda: self._run(seconds))

    def _run(self, seconds: float) -> Measurement:
        measurements: list[Measurement] = _together(self._processes, "run", self.photos, seconds, self.batch_size)
        images = sum(measurement.images for measurement in measurements)
        # Each ends with its own last batch, so the rates are added, not the counts.
        return Measurement(images, images / sum(measurement.rate for measurement in measurements))


def limit_processes(repository: Path, count: int) -> list[Remote]:
    """One bare loop per core."""
    from bench.limit import Loop  # torch, which the tests of tables do without

    return [Remote(Loop, repository) for _ in range(count)]


def parts_of(
    uncached: Service, cached: Service, photos: list[Photo], concurrency: int
) -> tuple[dict[str, Part], list[Remote]]:
    """Parts b to e, and the processes that send for them."""
    grpc, http = Remote(GrpcLoad, uncached.grpc_url), Remote(HttpLoad, uncached.http_url)
    again = Remote(HttpLoad, cached.http_url)

    def part(service: Service, sender: Remote, *arguments: object) -> Part:
        groups = {"load": [psutil.Process(sender.pid)], **service.processes}
        return lambda seconds: accounted(groups, lambda: sender.call("run", arguments[0], seconds, *arguments[1:]))

    parts = {
        "b": part(uncached, grpc, photos, concurrency),
        "c": part(uncached, http, photos, concurrency, 1),
        "d": part(uncached, http, photos, 1, FILES_IN_BULK),
        "e": part(cached, again, photos[:1], concurrency, 1),
    }
    return parts, [grpc, http, again]


def _together(processes: Sequence[Remote], method: str, *arguments: object) -> list[Any]:
    for process in processes:
        process.start(method, *arguments)
    return [process.result() for process in processes]
