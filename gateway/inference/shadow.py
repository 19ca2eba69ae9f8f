"""Shadow versions: called on a share of the traffic after the answer, and compared with it."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from functools import partial

import anyio
import numpy as np
import structlog
from numpy.typing import NDArray

from gateway import metrics
from gateway.deadline import Deadline
from gateway.errors import ContractBroken, DeadlineExceeded, GatewayError, InferenceFailed, UndecodableImage
from gateway.inference.backend import Backend, Batch, Call, InferResult, Row
from gateway.inference.prediction import Predictions
from gateway.inference.prediction_log import PredictionLog, ShadowClass
from gateway.inference.request_spec import RequestSpec, Result
from gateway.inference.scope import Scope
from gateway.inference.uncancelled import Uncancelled
from gateway.limits.lease import Lease
from gateway.limits.spare_capacity import SpareCapacity
from gateway.time_slices import TimeSlice

log = structlog.get_logger("gateway")

TIMEOUT_SECONDS = 10.0
"""Timeout of a call to a shadow version."""
SAME, DIFFERENT, SKIPPED = "same", "different", "skipped"
Scores = NDArray[np.float32]


class Shadows:
    """Calls shadow versions with images that were answered; their failures never affect a client.

    It owns its tasks: requests do not wait for them, and they end with the service. A shadow is called once, with a
    lease of `spare` capacity.
    """

    def __init__(
        self,
        backend: Backend,
        spare: SpareCapacity,
        uncancelled: Uncancelled,
        shares: Mapping[str, Mapping[str, int]],
        prediction_log: PredictionLog | None = None,
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._backend = backend
        self._spare = spare
        self._uncancelled = uncancelled
        self.enabled = bool(shares)
        """Whether any model has a shadow version."""
        self._shares = shares
        self._chance = chance
        self._log = prediction_log
        self._scope = Scope()
        self._failing: set[tuple[str, str]] = set()
        """Models and versions whose last call failed."""

    def __len__(self) -> int:
        return len(self._scope)

    def offer(
        self,
        query: RequestSpec,
        images: Sequence[bytes],
        answer: InferResult,
        results: Sequence[Result] = (),
    ) -> None:
        """Start calls to the shadow versions of a model, by their shares, for images with the rows of `answer`.

        `results` are those of the images, for the prediction log, which gets those that a shadow contradicts. Returns
        at once. Skipped as incomparable: rows without a likeliest class, and requests that select labels. Masked images
        of explanations are skipped as well.
        """
        shares = self._shares.get(query.model_name)
        labelled = query.selection is not None and query.selection.labels
        if shares is None or labelled or query.explanation is not None:
            return
        for version, percent in shares.items():
            if version == answer.model_version or 100 * self._chance() >= percent:
                continue
            known: Sequence[Result | None] = results or [None] * len(images)
            comparable = [each for each in zip(images, answer.rows, known, strict=True) if _has_top(each[1])]
            chosen = comparable[: self._spare.images.most]  # part of a batch that exceeds the spare capacity
            if not chosen:
                continue
            lease = self._spare.take(len(chosen), sum(_bytes_held(image, result) for image, _, result in chosen))
            skipped = len(comparable) - (0 if lease is None else len(chosen))
            if skipped:
                metrics.SHADOW_IMAGES.labels(SKIPPED, query.model_name, version).inc(skipped)
            if lease is None:
                continue
            compared = _Compared(query, version, *map(tuple, zip(*chosen, strict=True)))
            # In its own context: the request, with its trace and log fields, may end first.
            task = Context().run(self._scope.start, self._run(compared, lease))
            task.add_done_callback(partial(_release, lease))

    async def close(self) -> None:
        """Cancel running calls; calls that must not be cancelled are left to Uncancelled."""
        await self._scope.close()

    async def _run(self, compared: "_Compared", lease: Lease) -> None:
        key = (compared.model_name, compared.version)
        try:
            result = await self._infer(compared, lease)
            time_slice = TimeSlice()
            for row, shadow, answered in zip(compared.rows, result.rows, compared.results, strict=True):
                top = _compare(row, shadow, *key)
                if top is not None and self._log is not None and answered is not None and answered.record is not None:
                    self._log.offer_disagreement(compared.query, answered, top)
                await time_slice.pause_if_over()
        except GatewayError as error:
            metrics.SHADOW_IMAGES.labels(error.code, *key).inc(len(compared.rows))
            self._log_failure(key, error)
        except Exception:  # must not affect anything else
            metrics.SHADOW_IMAGES.labels("internal_error", *key).inc(len(compared.rows))
            log.exception("shadow_fault", model=compared.model_name, version=compared.version)
        else:
            self._log_success(key)

    async def _infer(self, compared: "_Compared", lease: Lease) -> InferResult:
        cancellable = self._backend.supports_cancellation
        call = Call(
            Batch(compared.images),
            compared.model_name,
            compared.version,
            None,
            Deadline.after(TIMEOUT_SECONDS),
            compared.request_id,
            run_to_completion=not cancellable,
            best_effort=True,
        )
        inference = self._backend.infer(call)
        with anyio.move_on_after(TIMEOUT_SECONDS):
            return await (inference if cancellable else self._uncancelled.run(inference, (lease,)))
        raise DeadlineExceeded

    def _log_failure(self, key: tuple[str, str], error: GatewayError) -> None:
        if key not in self._failing:
            self._failing.add(key)
            name, version = key
            cause = str(error.__cause__ or error)
            log.warning("shadow_fails", model=name, version=version, code=error.code, cause=cause)

    def _log_success(self, key: tuple[str, str]) -> None:
        if key in self._failing:
            self._failing.discard(key)
            log.info("shadow_answers", model=key[0], version=key[1])


class _Compared:
    """Images of a request, the rows and results of their answer, and the version to compare with."""

    __slots__ = ("images", "model_name", "query", "request_id", "results", "rows", "version")

    def __init__(
        self,
        query: RequestSpec,
        version: str,
        images: Sequence[bytes],
        rows: Sequence[Row],
        results: Sequence[Result | None],
    ) -> None:
        self.query, self.version = query, version
        self.model_name, self.request_id = query.model_name, query.request_id
        self.images, self.rows, self.results = images, rows, results


def difference(answered: Row, scores: Scores) -> tuple[bool, float]:
    """Compare an answer with another version's scores, fp32 [classes]: same likeliest class, and largest difference.

    The difference is that of a probability, over the classes of the answer. If the other version's likeliest class is
    not among them, its probability in the answer is at most the answer's lowest one; the difference counts from there.
    Raises ContractBroken if the number of classes differs.
    """
    if answered.scores is not None:
        if answered.scores.shape != scores.shape:
            raise ContractBroken("The shadow has a different number of classes.")
        return bool(answered.scores.argmax() == scores.argmax()), float(np.abs(answered.scores - scores).max())
    predictions = Predictions.of(answered.predictions)
    ids = np.frombuffer(predictions.class_ids, np.int32)
    if ids.max() >= len(scores):
        raise ContractBroken("The shadow has a different number of classes.")
    known = np.frombuffer(predictions.scores, np.float64)
    best = int(scores.argmax())
    largest = float(np.abs(known - scores[ids]).max())
    if best not in predictions.class_ids:
        largest = max(largest, float(scores[best] - known.min()))
    return int(ids[known.argmax()]) == best, largest


def _release(lease: Lease, _: "asyncio.Task[None]") -> None:
    lease.release()


def _has_top(row: Row) -> bool:
    return row.decoded and row.error is None and (row.scores is not None or len(row.predictions) > 0)


def _bytes_held(image: bytes, result: Result | None) -> int:
    """The bytes of an image that is sent to a shadow version, and of its file if the log may need that."""
    record = None if result is None else result.record
    return len(image) + (0 if record is None or record.data is image else len(record.data))


def _compare(answered: Row, shadow: Row, model_name: str, version: str) -> ShadowClass | None:
    """Compare and count one image; returns the shadow's likeliest class if it differs.

    Errors of the shadow are counted, not raised.
    """
    try:
        if shadow.error is not None:
            raise shadow.error
        if shadow.scores is None:
            raise UndecodableImage
        if not np.isfinite(shadow.scores).all():
            raise InferenceFailed
        same, largest = difference(answered, shadow.scores)
    except GatewayError as error:
        metrics.SHADOW_IMAGES.labels(error.code, model_name, version).inc()
        return None
    metrics.SHADOW_IMAGES.labels(SAME if same else DIFFERENT, model_name, version).inc()
    metrics.SHADOW_DIFFERENCE.labels(model_name, version).observe(largest)
    best = int(shadow.scores.argmax())
    return None if same else ShadowClass(version, best, float(shadow.scores[best]))
