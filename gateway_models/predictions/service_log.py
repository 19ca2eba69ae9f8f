"""The prediction log inside the service: selects results, and makes rows of them."""

import hashlib
import math
import random
from array import array
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import numpy as np

from gateway.inference.request import Image, Observer
from gateway.inference.result import Prediction, Predictions, Row
from gateway.settings import Settings
from gateway_models.predictions.layout import DISAGREEMENT, ERROR, FEEDBACK, LOW_SCORE, NO_MODEL, SAMPLE, model_folder
from gateway_models.predictions.live_drift import LiveDrift
from gateway_models.predictions.settings import PredictionLogSettings
from gateway_models.predictions.writer import LogRow, Writer

LOGGED_CLASSES = 5
"""The log keeps the scores of this many best classes, for any selection of the client, so that rows can be compared."""
ROW_BYTES = 1_024
"""Size in the queue of a row without its image."""


class ServiceLog(Observer):
    """Chooses results at random and by rules, and queues them for the writer; drops them if the queue is full."""

    best_classes = LOGGED_CLASSES
    keeps_files = True
    takes_feedback = True

    def __init__(self, service: Settings, *, chance: Callable[[], float] = random.random) -> None:
        self._settings = PredictionLogSettings.of(service)
        self._rules = self._settings.log_predictions_rules
        self._writer: Writer | None = None
        self._chance = chance
        self._live = LiveDrift()
        self._models = {service.model}
        """Models that have answered; other names may be made up by clients."""

    def start(self) -> None:
        """Start the writer."""
        self._writer = Writer(self._settings)
        self._writer.start()

    async def close(self) -> None:
        """Write the queue within a limited time."""
        if self._writer is not None:
            await self._writer.close()

    def done(self, image: Image, row: Row) -> None:
        """Log the result, if it is chosen."""
        model_name = image.spec.model_name
        if row.error is None:
            self._models.add(model_name)
            self._count(model_name, row)
        reasons = [SAMPLE] if 100 * self._chance() < self._settings.log_predictions_share else []
        if row.error is not None:
            reasons += [ERROR] if ERROR in self._rules else []
        elif LOW_SCORE in self._rules:
            scores = _best(row).scores
            reasons += [LOW_SCORE] if scores and scores[0] < self._rules[LOW_SCORE] else []
        if reasons:
            self._add(image, row, reasons)

    def disagreed(self, image: Image, row: Row, version: str, best: Prediction) -> None:
        """Log a result that a shadow version contradicts, in addition to the row with the answer."""
        if DISAGREEMENT in self._rules:
            shadow = {"shadow_version": version, "shadow_class_id": best.class_id, "shadow_score": best.score}
            self._add(image, row, [DISAGREEMENT], shadow)

    def add_feedback(self, feedback: Mapping[str, object]) -> bool:
        """Log a client's feedback, the columns of `schema.FEEDBACK` but the time; False if the queue is full."""
        row = LogRow(FEEDBACK, _now(), lambda: {**feedback}, ROW_BYTES)
        return self._writer is not None and self._writer.add(row)

    def _count(self, model_name: str, row: Row) -> None:
        """Count a result in the metrics of drift, if its model has a stored reference."""
        version = row.model_version
        if self._live.follows(model_name, version, row.drift_reference):
            best = _best(row)
            if len(best):
                number, scores = best.class_ids[0], list(best.scores)
                entropy_nats = entropy(scores, multi_label=row.multi_label)
                self._live.count(model_name, version, number, scores[0], entropy_nats)

    def _add(self, image: Image, row: Row, reasons: list[str], shadow: Mapping[str, object] = {}) -> None:
        """Queue a row, which keeps the file and nothing else of the image."""
        if self._writer is None:
            return
        name, data = image.spec.model_name, image.upload.data
        model = name if name in self._models else NO_MODEL
        share = self._settings.log_predictions_share
        known = {**_of_image(image), "model": model, "reasons": reasons, "share": share, **shadow}

        def columns() -> dict[str, object]:
            return {**known, **_of_row(row), "sha256": hashlib.sha256(data).hexdigest()}

        # Files that are not images, or not known to be, are not stored.
        stored = data if self._settings.log_predictions_images and image.header is not None else b""
        self._writer.add(LogRow(model_folder(model), _now(), columns, ROW_BYTES + len(data), stored))


def _of_image(image: Image) -> dict[str, object]:
    """The columns of a row (see `schema`) that follow from the request and the file."""
    spec, header = image.spec, image.header
    return {
        "request_id": spec.request_id,
        "index": image.upload.index,
        "width": None if header is None else header.width,
        "height": None if header is None else header.height,
        "format": "" if header is None else header.format.value,
        "bytes": len(image.upload.data),
        "signature": image.signature.hex(),
        "key": spec.key,
    }


def _of_row(row: Row) -> dict[str, object]:
    """The columns that follow from the answer."""
    best = _best(row)
    scores = list(best.scores)
    return {
        "version": row.model_version or None,
        "error": None if row.error is None else row.error.code,
        "labels": list(best.labels),
        "class_ids": list(best.class_ids),
        "scores": scores,
        "multi_label": row.multi_label,
        "entropy": entropy(scores, multi_label=row.multi_label) if scores else None,
        "margin": scores[0] - scores[1] if len(scores) > 1 else None,
    }


def entropy(scores: list[float], *, multi_label: bool) -> float:
    """The entropy in nats of the best classes' scores and of the rest, counted as one class.

    It is at most the entropy of all classes, and as the number of best classes is constant, comparable between rows.
    For a multi-label model, the mean of the classes' binary entropies.
    """
    if multi_label:
        return sum(_term(score) + _term(1 - score) for score in scores) / len(scores)
    return sum(map(_term, scores)) + _term(1 - sum(scores))


def _term(probability: float) -> float:
    return -probability * math.log(probability) if probability > 0 else 0.0


def _best(row: Row) -> Predictions:
    """The best classes of a result, at most LOGGED_CLASSES; without labels if the request was for all scores."""
    if row.scores is None or len(row.best):
        return row.best
    count = min(LOGGED_CLASSES, len(row.scores))
    top = np.argpartition(row.scores, -count)[-count:]
    top = top[np.argsort(row.scores[top])[::-1]]
    ids = top.tolist()
    row.best = Predictions(tuple(map(str, ids)), array("i", ids), array("d", row.scores[top].tolist()))
    return row.best


def _now() -> int:
    """The time in microseconds since 1970."""
    return int(datetime.now(UTC).timestamp() * 1e6)
