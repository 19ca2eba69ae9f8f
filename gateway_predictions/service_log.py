"""The prediction log inside the service: which results become rows, and what is in a row."""

import hashlib
import math
import random
from array import array
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import numpy as np

from gateway.inference.observer import Observer, Observers
from gateway.inference.prediction import Predictions
from gateway.inference.record import ImageRecord, ShadowClass
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Result
from gateway.inference.tools import Tools
from gateway.settings import Settings
from gateway.values.setting_values import ALL_MODELS
from gateway_predictions.layout import (
    DISAGREEMENT,
    ERROR,
    FEEDBACK,
    LOW_MARGIN,
    LOW_SCORE,
    NO_MODEL,
    SAMPLE,
    model_folder,
)
from gateway_predictions.live_drift import LiveDrift
from gateway_predictions.settings import PredictionLogSettings
from gateway_predictions.writer import LogRow, Writer

LOGGED_CLASSES = 5
"""The log keeps the scores of this many best classes, whatever the client selects, so that rows can be compared."""
ROW_BYTES = 1_024
"""What a row without its image counts in the queue."""


class ServiceLog(Observer):
    """Chooses results at random and by rules, and queues them for the writer; what does not fit is dropped."""

    best_classes = LOGGED_CLASSES
    keeps_records = True
    takes_feedback = True

    def __init__(self, service: Settings, *, chance: Callable[[], float] = random.random) -> None:
        self._settings = PredictionLogSettings.of(service)
        self._rules = self._settings.log_predictions_rules
        self._writer: Writer | None = None
        self._chance = chance
        self._live = LiveDrift()
        self._models = {service.model}
        """Models that have answered; other names may be made up by clients."""

    async def start(self, tools: Tools, others: Observers) -> None:  # noqa: ARG002
        """Start the writer."""
        self._writer = Writer(self._settings)
        self._writer.start()

    async def close(self) -> None:
        """Write what is in the queue, within a limited time."""
        if self._writer is not None:
            await self._writer.close()

    def done(self, spec: RequestSpec, result: Result, record: ImageRecord | None) -> None:
        """Log the result, if it is chosen."""
        if record is None:
            return
        if result.error is None:
            self._models.add(spec.model_name)
            self._count(spec.model_name, result, record)
        share = self._share(spec.model_name)
        reasons = [SAMPLE] if 100 * self._chance() < share else []
        if result.error is not None:
            reasons += [ERROR] if ERROR in self._rules else []
        elif LOW_SCORE in self._rules or LOW_MARGIN in self._rules:
            scores = _best(record, result).scores
            if scores and scores[0] < self._rules.get(LOW_SCORE, 0):
                reasons.append(LOW_SCORE)
            if len(scores) > 1 and scores[0] - scores[1] < self._rules.get(LOW_MARGIN, 0):
                reasons.append(LOW_MARGIN)
        if reasons:
            self._add(spec, result, record, reasons, share)

    def disagreed(self, spec: RequestSpec, result: Result, record: ImageRecord | None, shadow: ShadowClass) -> None:
        """Log a result that a shadow version contradicts, beside the row that was logged with the answer."""
        if DISAGREEMENT in self._rules and record is not None:
            self._add(spec, result, record, [DISAGREEMENT], self._share(spec.model_name), shadow)

    def add_feedback(self, feedback: Mapping[str, object]) -> bool:
        """Log a client's feedback, the columns of `schema.FEEDBACK` but the time; False if the queue is full."""
        row = LogRow(FEEDBACK, _now(), lambda: {**feedback}, ROW_BYTES)
        return self._writer is not None and self._writer.add(row)

    def _count(self, model_name: str, result: Result, record: ImageRecord) -> None:
        """Count a result in the metrics of drift, if its model has a stored reference."""
        version = result.model_version or ""
        if self._live.follows(model_name, version, record.drift_reference):
            best = _best(record, result)
            if len(best):
                number, scores = best.class_ids[0], list(best.scores)
                entropy_nats = entropy(scores, multi_label=result.multi_label)
                self._live.count(model_name, version, number, scores[0], entropy_nats)

    def _share(self, model_name: str) -> float:
        shares = self._settings.log_predictions_share
        return shares.get(model_name, shares.get(ALL_MODELS, 0.0))

    def _add(
        self,
        spec: RequestSpec,
        result: Result,
        record: ImageRecord,
        reasons: list[str],
        share: float,
        shadow: ShadowClass | None = None,
    ) -> None:
        """Queue a row."""
        if self._writer is None:
            return
        model = spec.model_name if spec.model_name in self._models else NO_MODEL

        def columns() -> dict[str, object]:
            row = {
                **row_of(spec, result, record),
                "model": model,
                "reasons": reasons,
                "share": share,
                "sha256": hashlib.sha256(record.data).hexdigest(),
            }
            if shadow is not None:
                row |= {f"shadow_{name}": getattr(shadow, name) for name in ("version", "class_id", "score")}
            return row

        # What is not an image, or not known to be one, is not stored.
        image = record.data if self._settings.log_predictions_images and record.format else b""
        nbytes = ROW_BYTES + len(record.data)
        self._writer.add(LogRow(model_folder(model), _now(), columns, nbytes, image))


def row_of(spec: RequestSpec, result: Result, record: ImageRecord) -> dict[str, object]:
    """The columns of a row (see `schema`) that follow from the request and its result."""
    best = _best(record, result)
    scores = list(best.scores)
    return {
        "request_id": spec.request_id,
        "index": result.index,
        "version": result.model_version,
        "error": None if result.error is None else result.error.code,
        "labels": list(best.labels),
        "class_ids": list(best.class_ids),
        "scores": scores,
        "multi_label": result.multi_label,
        "entropy": entropy(scores, multi_label=result.multi_label) if scores else None,
        "margin": scores[0] - scores[1] if len(scores) > 1 else None,
        "width": result.width,
        "height": result.height,
        "format": record.format,
        "bytes": len(record.data),
        "seal": record.seal.hex(),
        "key": spec.key,
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


def _best(record: ImageRecord, result: Result) -> Predictions:
    """The best classes of a result, at most LOGGED_CLASSES; without labels if the request was for all scores."""
    if result.scores is None or len(record.best):
        return record.best
    count = min(LOGGED_CLASSES, len(result.scores))
    top = np.argpartition(result.scores, -count)[-count:]
    top = top[np.argsort(result.scores[top])[::-1]]
    ids = top.tolist()
    record.best = Predictions(tuple(map(str, ids)), array("i", ids), array("d", result.scores[top].tolist()))
    return record.best


def _now() -> int:
    """The time in microseconds since 1970."""
    return int(datetime.now(UTC).timestamp() * 1e6)
