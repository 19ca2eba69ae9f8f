"""The measured parts of `make bench`: five ways to classify the same photographs, and their table."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import psutil

from bench.grpc_load import GrpcLoad
from bench.http_load import HttpLoad
from bench.limit import Loop
from bench.measurement import Measure, Measurement, Series, WrongAnswer, accounted
from bench.output import Progress, table
from bench.photos import Photo
from bench.remote import Remote
from bench.services import Service, gateway_up

FILES_IN_BULK = 200
CACHE_BYTES = 256 * 2**20
WARM_UP_SECONDS = 3.0
KNOWN = {("efficientnet-lite0", "coffee.jpg"): "espresso"}
"""The label that a trained model must predict; any other means that the bare loop computes wrongly."""
TITLES = {
    "a": "bare processes in a loop",
    "b": "gRPC straight to the ensemble",
    "c": "POST /predict, one file",
    "d": f"POST /predict, {FILES_IN_BULK} files",
    "e": "the same photograph each time, cache on",
}
GROUPS = {"load": "client", **{name: name for name in ("gateway", "Triton", "preprocessor", "classifier")}}
"""The groups of processes with a column in the table, and the columns' titles."""


class Limit:
    """(a): a bare loop in each of several processes, with the batch size that is fastest here."""

    def __init__(self, processes: Sequence[Remote], photos: list[Photo]) -> None:
        self._processes = processes
        labels = processes[0].call("label", photos)
        self.photos = [replace(photo, label=label) for photo, label in zip(photos, labels, strict=True)]
        # All at the same time, as they will run.
        sizes = [size.result() for size in [each.start("best_batch_size", photos) for each in processes]]
        self.batch_size: int = sorted(sizes)[len(sizes) // 2]

    def __call__(self, seconds: float) -> Measurement:
        """The sum of all processes."""
        groups = {"bare": [psutil.Process(process.pid) for process in self._processes]}
        return accounted(lambda: groups, lambda: self._run(seconds))

    def _run(self, seconds: float) -> Measurement:
        started = [each.start("run", self.photos, seconds, self.batch_size) for each in self._processes]
        measurements: list[Measurement] = [each.result() for each in started]
        images = sum(measurement.images for measurement in measurements)
        # Each ends with its own last batch, so the rates are added, not the counts.
        return Measurement(images, images / sum(measurement.rate for measurement in measurements))


@contextmanager
def parts_of(
    model: str, models: Path, photos: list[Photo], parts: str, concurrency: int, processes: int, progress: Progress
) -> Iterator[dict[str, Measure]]:
    """The chosen parts by letter, with everything that they need running and warmed up."""
    with ExitStack() as stack:
        progress(f"(a) warming up {processes} bare processes")
        limit = Limit([stack.enter_context(Remote(Loop, models)) for _ in range(processes)], photos)
        for photo in limit.photos:
            known = KNOWN.get((model, photo.name), photo.label)
            if photo.label != known:
                raise WrongAnswer(f"{photo.name} should be {known!r}, and the bare loop predicts {photo.label!r}")
        progress(f"(a) is fastest with batches of {limit.batch_size}; labels: {[each.label for each in limit.photos]}")
        progress("starting the service, without Triton's response cache and with it")
        uncached = stack.enter_context(gateway_up(models))
        cached = uncached
        if "e" in parts:
            cached = stack.enter_context(gateway_up(models, settings={"triton_cache_bytes": CACHE_BYTES}))
        grpc = stack.enter_context(Remote(GrpcLoad, uncached.grpc_url))
        http = stack.enter_context(Remote(HttpLoad, uncached.url))
        repeated = stack.enter_context(Remote(HttpLoad, cached.url))
        every: dict[str, Measure] = {
            "a": limit,
            "b": _part(uncached, grpc, limit.photos, concurrency),
            "c": _part(uncached, http, limit.photos, concurrency, 1),
            "d": _part(uncached, http, limit.photos, 1, FILES_IN_BULK),
            "e": _part(cached, repeated, limit.photos[:1], concurrency, 1),
        }
        chosen = {name: every[name] for name in sorted(set(parts))}
        for name, part in chosen.items():
            progress(f"warming up ({name}) {TITLES[name]}")
            part(WARM_UP_SECONDS)
        yield chosen


def _part(service: Service, sender: Remote, photos: list[Photo], *arguments: int) -> Measure:
    load = [psutil.Process(sender.pid)]
    return lambda seconds: accounted(
        lambda: {"load": load, **service.groups()}, lambda: sender.call("run", photos, seconds, *arguments)
    )


def report(measured: dict[str, Series], seconds: float, cores: int) -> str:
    """Throughput and processor time, a row for each part, and the conditions."""
    limit = measured.get("a")
    groups = [
        name for name in GROUPS if any(name in each.cpu_seconds for series in measured.values() for each in series)
    ]
    header = ["", "images/s", "share of (a)", "p50, p99, ms", *(f"CPU: {GROUPS[name]}, ms" for name in groups)]
    rows = []
    for part, series in measured.items():
        cost = series.cpu_milliseconds()
        requests = any(each.latencies_seconds for each in series)
        rows.append(
            [
                f"({part}) {TITLES[part]}",
                f"{series.rate:.0f}",
                str(series.ratio(limit)) if limit and part != "a" else "",
                f"{series.latency_milliseconds(50):.0f}, {series.latency_milliseconds(99):.0f}" if requests else "",
                *(f"{series.cpu_milliseconds(name):.2f}" if name in series[0].cpu_seconds else "" for name in groups),
                f"{cost:.2f}",
                f"{limit.cpu_milliseconds() / cost:.2f}" if limit else "",
            ]
        )
    others = max(each.others_cores for series in measured.values() for each in series)
    rounds = max(map(len, measured.values()))
    conditions = f"Rounds: {rounds} of {seconds:g} s each, on {cores} cores"
    text = table([*header, "in all, ms", "share of (a)"], rows)
    return f"{text}\n{conditions}; other processes kept {others:.1f} of them busy at most.\n"
