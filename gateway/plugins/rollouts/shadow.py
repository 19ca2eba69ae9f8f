"""Shadow versions: called on a share of the traffic after the answer, and compared with it."""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial

import anyio
import numpy as np
import structlog
from numpy.typing import NDArray

from gateway.errors import ContractBroken, DeadlineExceeded, GatewayError, InferenceFailed, UndecodableImage
from gateway.inference.backend import Call
from gateway.inference.request import Image, Observer
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Prediction, Predictions, Row
from gateway.inference.service import InferenceService
from gateway.limits.admission import Admission
from gateway.limits.bounds import Bound, FairQueue, Lease
from gateway.plugins.rollouts import metrics
from gateway.timing import Deadline, TimeSlice

log = structlog.get_logger("gateway")

TIMEOUT_SECONDS = 10.0
"""Timeout of a call to a shadow version."""
PART = 4
"""Shadow versions get at most 1/PART of each limit of the admission."""
SAME, DIFFERENT, SKIPPED = "same", "different", "skipped"
Scores = NDArray[np.float32]


class Shadows(Observer):
    """Calls shadow versions with images that were answered; their failures never affect a client.

    Requests do not wait for its tasks, which end with the service. A shadow is called once, with a lease of spare
    capacity. The backend knows which models have shadow versions.
    """

    def __init__(self, service: InferenceService, *, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._backend = service.backend
        self.tasks = service.uncancelled
        self.spare = SpareCapacity(service.admission)
        self._failing: set[tuple[str, str]] = set()
        """Models and versions whose last call failed."""

    def call_done(self, spec: RequestSpec, images: Sequence[tuple[Image, Row]]) -> None:
        """Start calls to the shadow versions of a model, by their shares, for images with their rows.

        Does not wait for them. Skips rows without a top-1 class and requests that select labels, which cannot be
        compared, and images of the lowest priority, such as masked copies.
        """
        rollout = self._backend.rollout(spec.model_name)
        if rollout is None or not rollout.shadow:
            return
        if spec.lowest_priority or (spec.selection is not None and spec.selection.labels):
            return
        for version, percent in rollout.shadow.items():
            if 100 * self._chance() >= percent:
                continue
            comparable = [each for each in images if each[1].model_version != version and _has_top(each[1])]
            chosen = comparable[: self.spare.images.most]  # part of a batch that exceeds the spare capacity
            if not chosen:
                continue
            lease = self.spare.take(len(chosen), sum(_bytes_held(image) for image, _ in chosen))
            skipped = len(comparable) - (0 if lease is None else len(chosen))
            if skipped:
                metrics.SHADOW_IMAGES.labels(SKIPPED, spec.model_name, version).inc(skipped)
            if lease is None:
                continue
            # In its own context: the request, with its trace and log fields, may end first.
            task = self.tasks.start(self._run(spec, version, chosen, lease), Context())
            task.add_done_callback(partial(_release, lease))

    async def _run(self, spec: RequestSpec, version: str, images: Sequence[tuple[Image, Row]], lease: Lease) -> None:
        key = (spec.model_name, version)
        try:
            shadows = await self._infer(spec, version, [image for image, _ in images], lease)
            time_slice = TimeSlice()
            for (image, row), shadow in zip(images, shadows, strict=True):
                if (best := _compare(row, shadow, *key)) is not None:
                    for disagreed in image.request.service.observers.disagreed:
                        disagreed(image, row, version, best)
                await time_slice.pause_if_over()
        except GatewayError as error:
            metrics.SHADOW_IMAGES.labels(error.code, *key).inc(len(images))
            self._log_failure(key, error)
        except Exception:  # must not affect anything else
            metrics.SHADOW_IMAGES.labels("internal_error", *key).inc(len(images))
            log.exception("shadow_fault", model=spec.model_name, version=version)
        else:
            self._failing.discard(key)

    async def _infer(self, spec: RequestSpec, version: str, images: Sequence[Image], lease: Lease) -> Sequence[Row]:
        cancellable = self._backend.supports_cancellation
        call = Call(
            [image.payload for image in images],
            spec.model_name,
            version,
            None,
            Deadline.after(TIMEOUT_SECONDS),
            spec.request_id,
            [image.signature for image in images],
            run_to_completion=not cancellable,
            best_effort=True,
        )
        inference = self._backend.infer(call)
        with anyio.move_on_after(TIMEOUT_SECONDS):
            return await (inference if cancellable else self.tasks.run(inference, (lease,)))
        raise DeadlineExceeded

    def _log_failure(self, key: tuple[str, str], error: GatewayError) -> None:
        if key not in self._failing:
            self._failing.add(key)
            name, version = key
            cause = str(error.__cause__ or error)
            log.warning("shadow_fails", model=name, version=version, code=error.code, cause=cause)


class SpareCapacity:
    """Leases for images while permits are free. A lease takes no permit: requests that come later find all of them.

    A lease is given only while no image waits and the free permits would suffice for all leases together. So what is in
    flight exceeds the limits by a quarter at most, and only for as long as such work takes.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.images = Bound("spare_images", max(1, admission.images.most // PART))
        self.bytes = Bound("spare_bytes", admission.bytes.most // PART)
        self._queue = FairQueue(self.images, self.bytes)

    def take(self, images: int, nbytes: int) -> Lease | None:
        """A lease for some images, of `nbytes` together; None if there is no spare capacity."""
        if not self._admission.has_room(self.images.held + images, self.bytes.held + nbytes):
            return None
        lease = self._queue.lease(images, nbytes)
        return lease if lease.try_acquire() else None


def difference(answered: Row, scores: Scores) -> tuple[bool, float]:
    """Compare an answer with another version's scores, fp32 [classes]: same top-1 class, and largest difference.

    The difference is the largest one of a probability, over the classes of the answer. If the other version's top-1
    class is not among them, its probability in the answer is at most the answer's lowest one; the difference counts
    from there. Raises ContractBroken if the number of classes differs.
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
    return row.error is None and (row.scores is not None or len(row.predictions) > 0)


def _bytes_held(image: Image) -> int:
    """The bytes of an image that is sent to a shadow version, and of its file if an observer may need that."""
    data = image.upload.data
    return len(image.payload) + (0 if data is image.payload else len(data))


def _compare(answered: Row, shadow: Row, model_name: str, version: str) -> Prediction | None:
    """Compare and count one image; returns the shadow's top-1 class if it differs.

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
    return None if same else Prediction(str(best), best, float(shadow.scores[best]))
