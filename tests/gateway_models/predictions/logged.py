"""A service with a prediction log, and the contents of the log."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prometheus_client import REGISTRY

from gateway_models.predictions import metrics, writer
from gateway_models.predictions.schema import PREDICTIONS
from tests.doubles.backend import PNG, StubBackend, ranked
from tests.processes import wait_for
from tests.services import stub_service

EVERYTHING = {"log_predictions_share": 100}
CLASSES = 6


def scores_backend(*scores: float) -> StubBackend:
    """A backend that answers with `scores`, and the labels class 0, class 1, …"""
    scores = scores or (0.6, 0.2, 0.1, 0.05, 0.03, 0.02)
    labels = [f"class {number}" for number in range(len(scores))]
    return StubBackend(ranked(labels, scores), labels=labels)


@contextmanager
def writing(**constants: float) -> Iterator[None]:
    """Services that start in the block write their files sooner than after a minute; other constants by their names."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"file_seconds": 0.1, "closing_seconds": 60, **constants}.items():
            patch.setattr(writer, name.upper(), value)
        yield


@contextmanager
def logging_service(
    folder: object,
    backend: StubBackend | None = None,
    constants: dict[str, float] | None = None,
    **settings: object,
) -> Iterator[httpx.Client]:
    """A client of a service that logs every result, unless `settings` say otherwise."""
    options = {"log_predictions": str(folder), **EVERYTHING, **settings}
    with (
        writing(**(constants or {})),
        stub_service(backend or scores_backend(), **options) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        yield client


LATER = {"file_seconds": 3600}
"""Files are written when the service stops."""


def send(client: httpx.Client, image: bytes = PNG, path: str = "/predict", **headers: str) -> httpx.Response:
    """Send one image; underscores in the names of headers are dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post(path, content=image, headers={"content-type": "image/png", **named})


def send_many(client: httpx.Client, count: int, image: bytes = PNG, **headers: str) -> None:
    """Send an image several times in one request; all must be answered."""
    form = [("files", ("a.png", image, "image/png"))] * count
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    assert client.post("/predict", files=form, headers=named).json()["summary"]["ok"] == count


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


def failures() -> float:
    """Attempts to write that failed, so far, in this process."""
    return REGISTRY.get_sample_value("gateway_prediction_log_failures_total", {"reason": "sink"}) or 0.0


def outcomes() -> dict[str, float]:
    """Rows so far by outcome, in this process."""
    samples = [sample for family in metrics.PREDICTION_LOG_ROWS.collect() for sample in family.samples]
    return {sample.labels["outcome"]: sample.value for sample in samples if sample.name.endswith("_total")}


@contextmanager
def counted() -> Iterator[dict[str, float]]:
    """The rows of the block by outcome, without zeros; filled at its end."""
    before, found = outcomes(), {}
    yield found
    found.update({name: value - before[name] for name, value in outcomes().items() if value != before[name]})


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def a_row(number: int, margin: float = 0.5, **members: Any) -> dict[str, Any]:
    """A row of an image of two classes."""
    return {
        "request_id": f"r{number}",
        "index": 0,
        "model": "m",
        "version": "1",
        "time": NOON,
        "sha256": f"{number:064x}",
        "labels": ["cat", "dog"],
        "class_ids": [0, 1],
        "scores": [0.5 + margin / 2, 0.5 - margin / 2],
        "margin": margin,
        "entropy": 1 - margin,
        "reasons": ["sample"],
        **members,
    }


def write_file(folder: Path, name: str, given: list[dict[str, Any]], schema: pa.Schema = PREDICTIONS) -> None:
    """Write rows into a file of a log; members that a row lacks are empty."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    known = [{column: row.get(column) for column in schema.names} for row in given]
    pq.write_table(pa.Table.from_pylist(known, schema), path)
