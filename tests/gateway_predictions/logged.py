"""A service with a prediction log, and what is in the log."""

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq

from gateway import metrics
from gateway.errors import ModelNotFound
from gateway.inference.backend import Call, InferResult, Row
from gateway.inference.prediction import Predictions
from tests.gateway.api.stub import PNG, StubBackend
from tests.processes import wait_for
from tests.stub_service import stub_service

EVERYTHING = {"log_predictions_share": {"*": 100.0}, "log_predictions_file_seconds": 0.1}
CLASSES = 6


class ScoresBackend(StubBackend):
    """Answers with `scores`, and the labels class 0, class 1, …; a call selects as Triton's catalogue does."""

    def __init__(self, *scores: float) -> None:
        super().__init__()
        self.scores = scores or (0.6, 0.2, 0.1, 0.05, 0.03, 0.02)
        self.calls: list[Call] = []

    async def labels(self, model_name: str, model_version: str) -> tuple[str, ...]:
        if model_name == "none":
            raise ModelNotFound
        return tuple(f"class {number}" for number in range(len(self.scores)))

    async def infer(self, call: Call) -> InferResult:
        self.calls.append(call)
        labels = tuple(f"class {number}" for number in range(len(self.scores)))
        known = Predictions(labels, array("i", range(len(self.scores))), array("d", self.scores))
        selected = call.selection.apply(known, multi_label=False)[: call.selection.class_count(multi_label=False)]
        row = Row(decoded=True, predictions=selected, best=known[: call.least_classes])
        return InferResult(call.model_name, call.model_version or "1", (row,) * len(call.batch))


@contextmanager
def logging_service(folder: object, backend: StubBackend | None = None, **settings: object) -> Iterator[httpx.Client]:
    """A client of a service that logs every result, unless `settings` say otherwise."""
    options = {"log_predictions": str(folder), **EVERYTHING, **settings}
    with stub_service(backend or ScoresBackend(), **options) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


def send(client: httpx.Client, image: bytes = PNG, path: str = "/predict", **headers: str) -> httpx.Response:
    """Send one image; underscores in the names of headers are dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post(path, content=image, headers={"content-type": "image/png", **named})


def files(folder: Path, below: str = "rows") -> list[Path]:
    """The files of the log, and drafts."""
    return sorted(path for path in (folder / below).rglob("*") if path.is_file())


def rows(folder: Path, count: int | None = None, below: str = "rows") -> list[dict[str, Any]]:
    """The rows of the log; waits until there are at least `count`."""

    def read() -> list[dict[str, Any]]:
        tables = [pq.read_table(path).to_pylist() for path in files(folder, below) if path.suffix == ".parquet"]
        return sorted((row for table in tables for row in table), key=lambda row: row["time"])

    if count is not None:
        wait_for(lambda: len(read()) >= count)
    return read()


def failures(client: httpx.Client) -> float:
    """Attempts to write that failed, so far."""
    series = 'gateway_prediction_log_failures_total{reason="sink"} '
    lines = client.get("/metrics").text.splitlines()
    return next(float(line.removeprefix(series)) for line in lines if line.startswith(series))


def outcomes() -> dict[str, float]:
    """Rows so far by outcome, in this process."""
    samples = [sample for family in metrics.PREDICTION_LOG_ROWS.collect() for sample in family.samples]
    return {sample.labels["outcome"]: sample.value for sample in samples if sample.name.endswith("_total")}


@contextmanager
def counted() -> Iterator[dict[str, float]]:
    """The rows of the block by outcome, those that are not 0; filled at its end."""
    before, found = outcomes(), {}
    yield found
    found.update({name: value - before[name] for name, value in outcomes().items() if value != before[name]})
