"""The prediction log inside the service: which results become rows, and what is in a row."""

import asyncio
import hashlib
import math
import random
import time
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime

import anyio
import numpy as np

from gateway.errors import ImageError, Overloaded
from gateway.inference.observer import Observer, Observers
from gateway.inference.prediction import Predictions
from gateway.inference.record import ImageRecord, ShadowClass
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Result
from gateway.inference.tools import Tools
from gateway.ingest.decoders.pool import Decoders
from gateway.ingest.inspection import encoded
from gateway.ingest.upload import Upload
from gateway.settings import DecodeMode, Settings
from gateway.time_slices import TimeSlice
from gateway.values.setting_values import ALL_MODELS
from gateway_predictions.image_measures import MEASURED_SIDE, measures_of, pixels_of
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
from gateway_predictions.link import Pieces, WriterLink
from gateway_predictions.live_drift import LiveDrift
from gateway_predictions.settings import FILE_BYTES, FILE_ROWS, FILE_SECONDS, QUEUE_BYTES, PredictionLogSettings
from gateway_predictions.writer import ROW_BYTES, WriterOptions, encode

LOGGED_CLASSES = 5
"""The log keeps the scores of this many best classes, whatever the client selects, so that rows can be compared."""
HASHED_INLINE_BYTES = 2**20
"""A larger image is hashed on a thread, so that it does not block the event loop."""
MEASURE_SECONDS = 1.0
"""Pause between two images whose brightness and sharpness are measured: the cost does not grow with the load."""
MEASURE_TIMEOUT_SECONDS = 0.5
"""Longest time for that; the next rows wait meanwhile."""


class ServiceLog(Observer):
    """Chooses results at random and by rules, and queues them for the writer; what does not fit is dropped."""

    best_classes = LOGGED_CLASSES
    keeps_records = True
    keeps_embeddings = True
    takes_feedback = True

    def __init__(self, service: Settings, *, chance: Callable[[], float] = random.random) -> None:
        settings = PredictionLogSettings.of(service)
        self._options = WriterOptions(
            settings.log_predictions or "",
            settings.log_predictions_keep_days,
            settings.log_predictions_keep_bytes,
            FILE_ROWS,
            FILE_BYTES,
            FILE_SECONDS,
        )
        self._settings = settings
        self._rules = settings.log_predictions_rules
        self._decodes = service.decode is not DecodeMode.NEVER
        self._link: WriterLink | None = None
        self._chance = chance
        self._live = LiveDrift()
        self._decoders: Decoders | None = None
        self._measured_at = -math.inf
        self._models = {service.model}
        """Models that have answered; other names may be made up by clients."""

    async def start(self, tools: Tools, others: Observers) -> None:  # noqa: ARG002
        """Start the writer."""
        if self._decodes:
            self._decoders = tools.decoders
        self._link = WriterLink(self._options, QUEUE_BYTES)
        self._link.start()

    async def close(self) -> None:
        """Write what is in the queue, within a limited time."""
        if self._link is not None:
            await self._link.close()

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
        row = {"time": _now(), **feedback}

        async def pieces() -> Pieces:
            return encode(FEEDBACK, row)

        return self._link is not None and self._link.add(pieces, ROW_BYTES)

    def _count(self, model_name: str, result: Result, record: ImageRecord) -> None:
        """Count a result in the metrics of drift, if its model has a stored reference."""
        version = result.model_version or ""
        if self._live.follows(model_name, version, record.drift_reference):
            best = _best(record, result)
            if len(best):
                number, scores = best.class_ids[0], list(best.scores)
                entropy_nats = entropy(scores, multi_label=result.multi_label)
                self._live.count(model_name, version, number, scores[0], entropy_nats)

    async def _measures(self, record: ImageRecord) -> dict[str, float]:
        """Brightness and sharpness of one image each MEASURE_SECONDS; {} for others, and if it cannot be decoded.

        A decoder's process decodes it, as it would for the model, since the file may be hostile.
        """
        decoders, info = self._decoders, record.info
        if decoders is None or info is None or time.monotonic() - self._measured_at < MEASURE_SECONDS:
            return {}
        file = encoded(Upload(0, "", record.data), info)
        try:
            with anyio.move_on_after(MEASURE_TIMEOUT_SECONDS), suppress(ImageError, Overloaded):
                decoded = await decoders.decode(file, info, MEASURED_SIDE, decoders.account())
                return asdict(await asyncio.to_thread(lambda: measures_of(pixels_of(decoded.pixels))))
            return {}
        finally:
            self._measured_at = time.monotonic()

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
        """Queue a row. It is made when it is sent, since its image may take long to hash."""
        if self._link is None:
            return
        model = spec.model_name if spec.model_name in self._models else NO_MODEL
        now = _now()

        async def pieces() -> Pieces:
            time_slice = TimeSlice()
            is_measured = SAMPLE in reasons and result.error is None
            row = {
                **row_of(spec, result, record),
                "time": now,
                "model": model,
                "reasons": reasons,
                "share": share,
                "sha256": await _sha256(record.data),
                **(await self._measures(record) if is_measured else {}),
            }
            if shadow is not None:
                row |= {f"shadow_{name}": getattr(shadow, name) for name in ("version", "class_id", "score")}
            embedding = b"" if record.embedding is None else np.ascontiguousarray(record.embedding, "<f4").tobytes()
            # What is not an image, or not known to be one, is not stored.
            image = record.data if self._settings.log_predictions_images and record.format else b""
            await time_slice.pause_if_over()
            return encode(model_folder(model), row, embedding, image)

        embedding_bytes = 0 if record.embedding is None else record.embedding.nbytes
        self._link.add(pieces, ROW_BYTES + len(record.data) + embedding_bytes)


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
        "fields": dict(spec.fields),
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


async def _sha256(data: bytes) -> str:
    if len(data) > HASHED_INLINE_BYTES:
        return await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())
    return hashlib.sha256(data).hexdigest()


def _now() -> int:
    """The time in microseconds since 1970."""
    return int(datetime.now(UTC).timestamp() * 1e6)
