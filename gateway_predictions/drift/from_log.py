"""The samples of a prediction log: rows that were logged at random, without errors."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gateway.settings import variable
from gateway_predictions.drift.comparison import TooFewImages
from gateway_predictions.drift.sample import (
    BRIGHTNESS,
    CLASS,
    ENTROPY,
    FORMAT,
    MOST_IMAGES,
    PIXELS,
    SCORE,
    SHARPNESS,
    LoggedImage,
    WindowSample,
    order_of,
    sample_of,
)
from gateway_predictions.reader import LogReader, Row
from gateway_predictions.reasons import SAMPLE

_COLUMNS = (
    "time",
    "request_id",
    "index",
    "version",
    "reasons",
    "error",
    "labels",
    "class_ids",
    "scores",
    "entropy",
    "width",
    "height",
    "format",
    "brightness",
    "sharpness",
    "embedding",
)
_MEASURED = ("request_id", "index", "brightness", "sharpness")
_Kept = tuple[bytes, Row]
"""A row, and the key of its request."""


@dataclass(frozen=True, slots=True)
class Period:
    """A part of a log: of one version of a model, from `since` (included) until `until` (not included)."""

    model: str
    version: str
    since: datetime | None
    until: datetime | None


def version_in(log: LogReader, model: str, since: datetime | None, until: datetime | None) -> str:
    """The version that most random rows of a period have; raises TooFewImages if there are none."""
    found: Counter[str] = Counter()
    for table in log.tables(model=model, since=since, until=until, columns=["version", "reasons", "error"]):
        found.update(version for version in _random(table)["version"].to_pylist() if version)
    if not found:
        hint = f"compare more days, or log a larger share ({variable('log_predictions_share')})"
        raise TooFewImages(f"{log.url} has no random rows of {model} in this time: {hint}")
    return found.most_common(1)[0][0]


def sample_from(log: LogReader, period: Period, most: int = MOST_IMAGES) -> WindowSample:
    """The random rows of a period: at most `most`, of requests that are chosen at random but always alike.

    Only one row a second has a brightness. So that a busy log has enough of them, there may be `most` further images of
    which nothing but brightness and sharpness counts.
    """
    kept: list[_Kept] = []
    measured: list[_Kept] = []
    tables = log.tables(model=period.model, since=period.since, until=period.until, columns=_COLUMNS)
    for table in tables:
        rows = _random(table)
        rows = rows.filter(pc.equal(rows["version"], period.version).fill_null(fill_value=False))
        kept = _smallest(kept, rows, most)
        measured = _smallest(measured, rows.filter(pc.is_valid(rows["brightness"])).select(list(_MEASURED)), most)
    known = {_key(row) for _, row in kept}
    images = [_image(row) for _, row in kept]
    images += [
        LoggedImage(row["request_id"] or "", _measures(row), {}) for _, row in measured if _key(row) not in known
    ]
    return sample_of(images, _labels([row for _, row in kept]))


def _smallest(kept: list[_Kept], rows: pa.Table, most: int) -> list[_Kept]:
    """The rows with the smallest keys among `kept` and `rows`, sorted by key."""
    keys = [order_of(request_id or "") for request_id in rows["request_id"].to_pylist()]
    last = kept[-1][0] if len(kept) >= most else None
    chosen = [number for number, key in enumerate(keys) if last is None or key <= last]
    # Embeddings become Python objects only where a row may be kept.
    new = zip((keys[number] for number in chosen), rows.take(pa.array(chosen, pa.int64())).to_pylist(), strict=True)
    return sorted([*kept, *new], key=lambda each: each[0])[:most]


def _key(row: Row) -> tuple[str, int]:
    return row["request_id"], row["index"]


def _measures(row: Row) -> dict[str, float | None]:
    return {BRIGHTNESS: row["brightness"], SHARPNESS: row["sharpness"]}


def _random(table: pa.Table) -> pa.Table:
    """The rows that were logged at random and have a result. Rules prefer some images, and would look like drift."""
    reasons = table["reasons"].to_pylist()
    is_random = pa.array([SAMPLE in (each or ()) for each in reasons], pa.bool_())
    return table.filter(pc.and_(is_random, pc.is_null(table["error"])))


def _image(row: Row) -> LoggedImage:
    width, height = row["width"], row["height"]
    return LoggedImage(
        row["request_id"] or "",
        {
            SCORE: row["scores"][0] if row["scores"] else None,
            ENTROPY: row["entropy"],
            PIXELS: width * height if width and height else None,
            **_measures(row),
        },
        {CLASS: str(row["class_ids"][0]) if row["class_ids"] else None, FORMAT: row["format"] or None},
        None if row["embedding"] is None else np.asarray(row["embedding"], np.float32),
    )


def _labels(rows: list[Row]) -> dict[str, str]:
    """The labels of the best classes. Rows of requests without labels have the number instead."""
    found: dict[str, str] = {}
    for row in rows:
        if row["class_ids"] and row["labels"]:
            number, label = str(row["class_ids"][0]), str(row["labels"][0])
            if label != number or number not in found:
                found[number] = label
    return found
