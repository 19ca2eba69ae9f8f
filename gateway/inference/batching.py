"""Dynamic batching: the images of all requests in few calls.

An image leaves at once while a Triton is idle. While as many calls are out as keep the Tritons of its model busy, it
waits; each call that returns is followed by the next one, with images of similar size of one request or of many.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import structlog

from gateway import metrics, tracing
from gateway.deadline import Deadline
from gateway.errors import (
    DamagedImage,
    DeadlineExceeded,
    GatewayError,
    InferenceFailed,
    ModelNotFound,
    ModelUnavailable,
    RequestError,
    UndecodableImage,
)
from gateway.inference.backend import Backend, Batch, Call, CallLimits, Embeddings, InferResult, Row
from gateway.inference.expansion import Report
from gateway.inference.observer import CallImage, Observers
from gateway.inference.prediction import Predictions
from gateway.inference.record import ImageRecord
from gateway.inference.request_spec import RequestSpec
from gateway.inference.request_stats import Stage
from gateway.inference.result import Answer, Result
from gateway.inference.tools import Tools
from gateway.limits.admission import COSTLY_SECONDS, COSTLY_SHARE, Permit

CALL_SECONDS = 0.1
"""Expected seconds of decoding in one call; an image that takes longer is alone in its call."""
LIMITS_SECONDS = 1.0
"""How long the backend's limits of calls are cached."""
SEALED_INLINE_BYTES = 4 * 2**20
"""A larger image is sealed on a thread, so that it does not block the event loop; this one takes 0.6 ms."""


class Lane(NamedTuple):
    """Images that may share a call: similar in size and in the time to decode them.

    A batch is padded to its longest image. Images whose sizes share their highest bit differ by less than a factor of
    two, so padding less than doubles the bytes, whatever sizes are mixed. For a model that takes no padding, `size` is
    the length itself.
    """

    size: int
    costly: bool


ALONE = Lane(0, costly=False)
"""The lane of images of which each has a call of its own, beyond the calls that keep the Tritons busy."""


@dataclass(eq=False, slots=True)
class QueuedImage:
    """An image with its permit, from its admission to its result; `report` is called with the result.

    `file` is the result of its file so far: its name and size.
    """

    queue: "RequestQueue" = field(repr=False)
    file: Result
    payload: bytes = field(repr=False)
    permit: Permit
    deadline: Deadline
    report: Report
    decode_seconds: float = 0.0
    """Expected processor time of decoding in the preprocessor."""
    record: ImageRecord | None = None
    """What observers need of the image, if any do."""
    lane: Lane = field(init=False)
    seal: bytes = b""
    timer: asyncio.TimerHandle | None = None
    call: "BatchCall | None" = None
    """The call that the image is in; None before."""
    stage: Stage | None = None
    """The stage of the request's statistics that it is in."""

    def enter(self, stage: Stage | None) -> None:
        """Leave the current stage, and enter another one, if any."""
        if self.stage is not None:
            self.stage.__exit__()
        if stage is not None:
            stage.__enter__()
        self.stage = stage


class RequestQueue:
    """The images of one request that have no result yet; `close` drops them.

    `on_error` is called with an error that ends the request, and is set by the request.
    """

    def __init__(self, batcher: "Batcher", spec: RequestSpec) -> None:
        self.batcher = batcher
        self.spec = spec
        self.context = copy_context()
        """The request's trace and log fields."""
        self.group = (spec.model_version, spec.selection, spec.embeddings)
        """Images share a call only with those of the same group."""
        self.on_error: Callable[[Exception], None] = _ignore
        self.images: set[QueuedImage] = set()
        self.lanes: dict[Lane, deque[QueuedImage]] = {}
        """The images that wait for a call; lanes alternate."""
        self.calls = 0
        """Calls in flight with images of this request."""
        self.closed = False

    def close(self) -> None:
        """Drop every image: those in calls with other requests' images are computed, but have no result."""
        self.closed = True
        self.on_error = _ignore  # the request and its queue refer to each other, and full garbage collections are long
        if self.images:
            # Waiting ones first: a call that is abandoned frees its place, and must not be followed by one with them.
            for item in sorted(self.images, key=lambda item: item.call is not None):
                self.batcher.drop(item)

    def fail(self, error: Exception) -> None:
        """Drop every image, and end the request with an error."""
        on_error = self.on_error
        self.close()
        on_error(error)


@dataclass(eq=False, slots=True)
class BatchCall:
    """A call in flight."""

    items: list[QueuedImage]
    queues: Collection[RequestQueue]
    """The requests of its images."""
    cancellable: bool
    counted: bool
    """Whether it counts as one of those that keep the Tritons busy."""
    costly: bool
    task: "asyncio.Task[InferResult] | None" = None
    began: float = 0.0

    def open_items(self) -> list[QueuedImage]:
        """Its images that have no result yet."""
        return [item for item in self.items if item.call is self]


class ModelQueue:
    """The requests that wait for calls of one model, and the calls in flight."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: dict[RequestQueue, None] = {}
        """Requests with waiting images, in the order of their turns."""
        self.calls = 0
        self.counted = 0
        self.costly = 0
        """Calls in flight: all of them, those that keep the Tritons busy, and those of costly images."""
        self.known = False
        """Whether the backend knows the model: clients can request names of their own making."""
        self._limits: CallLimits | None = None
        self._limits_until = 0.0

    @property
    def mixes_lengths(self) -> bool:
        """Whether images of different length may share a call; assumed until the backend knows the model."""
        return self._limits is None or self._limits.mixed_lengths

    def limits(self, backend: Backend, version: str, max_images: int) -> CallLimits | None:
        """The backend's limits of calls, at most LIMITS_SECONDS old."""
        now = asyncio.get_running_loop().time()
        if self._limits is None or now >= self._limits_until:
            self._limits = backend.call_limits(self.name, version, max_images)
            self._limits_until = now + LIMITS_SECONDS
            self.known = self._limits is not None
        return self._limits


class Batcher:
    """Sends the images of all requests to the backend, and reports each result and releases its permit.

    Requests take turns: each call has one image of each request that waits, and more while it has space. A
    RequestError of the backend ends the requests of its call; every other error is the result of the call's images.
    """

    def __init__(self, tools: Tools, observers: Observers) -> None:
        self._backend = tools.backend
        self._limits = tools.batches
        self._uncancelled = tools.uncancelled
        self._observers = observers
        self._observed_embeddings = Embeddings.IF_ANY if observers.keep_embeddings else Embeddings.NONE
        """The embeddings that calls return if the client asks for none."""
        self._models: dict[str, ModelQueue] = {}

    def queue(self, spec: RequestSpec) -> RequestQueue:
        """The queue of a new request, which must close it."""
        return RequestQueue(self, spec)

    async def add(self, item: QueuedImage) -> None:
        """Send an image, or let it wait for a call."""
        queue, payload, backend = item.queue, item.payload, self._backend
        if len(payload) > SEALED_INLINE_BYTES:
            item.seal = await asyncio.to_thread(backend.seal, payload)
        else:
            item.seal = backend.seal(payload)
        if queue.closed:
            return  # its permit ends with the request
        name, version, stages = queue.spec.model_name, queue.spec.model_version, queue.spec.stats.stages
        model = self._models.get(name)
        size = len(payload).bit_length() if model is None or model.mixes_lengths else len(payload)
        alone = backend.needs_own_call(item.seal, name, version)
        item.lane = ALONE if alone else Lane(size, item.decode_seconds >= COSTLY_SECONDS)
        queue.images.add(item)
        left_seconds = item.deadline.left_seconds
        item.timer = asyncio.get_running_loop().call_later(left_seconds, self._expire, item)
        if not left_seconds:
            self._expire(item)
            return
        if model is None:
            model = self._models[name] = ModelQueue(name)
        self._enqueue(model, item)
        self._send_waiting(model)
        if item.call is None and item in queue.images:
            item.enter(stages["wait"])

    def _enqueue(self, model: ModelQueue, item: QueuedImage) -> None:
        lanes = item.queue.lanes
        if item.lane not in lanes:
            lanes[item.lane] = deque()
        lanes[item.lane].append(item)
        model.waiting.setdefault(item.queue)

    def _send_waiting(self, model: ModelQueue) -> None:
        """Send calls while images wait that may leave."""
        while model.waiting and (items := self._next(model)):
            self._send(model, items)
        if not (model.known or model.calls or model.waiting):
            self._models.pop(model.name, None)

    def _next(self, model: ModelQueue) -> list[QueuedImage]:
        """The images of the next call; none if none may leave now."""
        max_images = self._limits.max_images
        for queue in model.waiting:
            if queue.calls >= self._limits.max_calls:
                continue
            limits = model.limits(self._backend, queue.spec.model_version, max_images)
            for lane in queue.lanes:
                if lane is ALONE or limits is None:
                    return self._take(model, queue, lane, max_images)
                costly_calls = max(1, int(limits.calls * COSTLY_SHARE))
                if model.counted < limits.calls and not (lane.costly and model.costly >= costly_calls):
                    return self._take(model, queue, lane, min(max_images, limits.images))
        return []

    def _take(self, model: ModelQueue, first: RequestQueue, lane: Lane, max_images: int) -> list[QueuedImage]:
        """Take images of one lane, one of each request in turn, beginning with `first`, until the call is full."""
        turns = deque((first,))
        if lane is ALONE:
            max_images = 1
        elif len(model.waiting) > 1:
            turns.extend(
                queue
                for queue in model.waiting
                if queue is not first
                and lane in queue.lanes
                and queue.group == first.group
                and queue.calls < self._limits.max_calls
            )
        items: list[QueuedImage] = []
        longest, seconds = 0, 0.0
        while turns and len(items) < max_images:
            queue = turns.popleft()
            images = queue.lanes[lane]
            longest, seconds = max(longest, len(images[0].payload)), seconds + images[0].decode_seconds
            if items and (longest * (len(items) + 1) > self._limits.max_bytes or seconds > CALL_SECONDS):
                break
            items.append(images.popleft())
            del queue.lanes[lane], model.waiting[queue]
            if images:
                queue.lanes[lane] = images
                turns.append(queue)
            if queue.lanes:
                model.waiting[queue] = None  # its next turn is after those of all others
        return items

    def _send(self, model: ModelQueue, items: list[QueuedImage]) -> None:
        queues: dict[RequestQueue, None] = {}
        images, seals, deadline = [], [], items[0].deadline
        cancellable, lane = self._backend.supports_cancellation, items[0].lane
        batch_call = BatchCall(items, queues, cancellable, counted=lane is not ALONE, costly=lane.costly)
        for item in items:
            queues[item.queue] = None
            images.append(item.payload)
            seals.append(item.seal)
            deadline = max(deadline, item.deadline)
            item.call = batch_call
            item.enter(item.queue.spec.stats.stages["infer"])
            item.permit.keep()  # the image is in Triton until the call ends, even if its request has ended
        model.calls += 1
        model.counted += batch_call.counted
        model.costly += batch_call.costly
        for queue in queues:
            queue.calls += 1
        queue = items[0].queue
        spec, context, request_id = queue.spec, queue.context, queue.spec.request_id
        if len(queues) > 1:
            request_id = ",".join([queue.spec.request_id for queue in queues])
            context = context.copy()
            context.run(structlog.contextvars.bind_contextvars, request_id=request_id)
            context.run(tracing.link, [other.context for other in queues if other is not queue])
        call = Call(
            Batch(images, seals),
            spec.model_name,
            spec.model_version,
            spec.selection,
            deadline,
            request_id,
            run_to_completion=not cancellable,
            embeddings=self._observed_embeddings if spec.embeddings is Embeddings.NONE else spec.embeddings,
            least_classes=self._observers.best_classes,
        )
        metrics.BATCH_IMAGES.observe(len(items))
        batch_call.began = time.perf_counter()
        batch_call.task = self._uncancelled.start(self._backend.infer(call), context)
        batch_call.task.add_done_callback(partial(self._ended, model, batch_call))

    def _ended(self, model: ModelQueue, call: BatchCall, task: "asyncio.Task[InferResult]") -> None:
        """Send the next call, and report the results of the one that has ended."""
        metrics.CALL_SECONDS.observe(time.perf_counter() - call.began)
        model.calls -= 1
        self._uncount(model, call)
        for queue in call.queues:
            queue.calls -= 1
        for item in call.items:
            item.permit.settle()
        error: BaseException | None = ModelUnavailable() if task.cancelled() else task.exception()
        if isinstance(error, InferenceFailed) and len(call.queues) > 1:
            # One image may be the cause: the images of other requests must not share its error.
            for item in call.open_items():
                item.call, item.lane = None, ALONE
                self._enqueue(model, item)
        elif error is not None:
            open_items = call.open_items()
            for queue in call.queues:
                self._report_error(queue, [item for item in open_items if item.queue is queue], error)
        if model.waiting or not model.known:
            self._send_waiting(model)
        if error is None:
            self._report_rows(call, task.result())

    def _report_rows(self, call: BatchCall, result: InferResult) -> None:
        observed = self._observers.call_done
        results: dict[QueuedImage, tuple[Row, Result]] = {}
        for item, row in zip(call.items, result.rows, strict=True):
            if item.call is call:
                finished = _result(item, row, result, self._observers.best_classes)
                self._finish(item, finished)
                results[item] = row, finished
        if not observed:
            return
        for queue in call.queues:  # after the results are reported and the permits released
            if items := [item for item in results if item.queue is queue]:
                part = replace(result, rows=tuple(results[item][0] for item in items))
                images = [CallImage(item.payload, item.seal, results[item][1], item.record) for item in items]
                for call_done in observed:
                    call_done(queue.spec, part, images)

    def _report_error(self, queue: RequestQueue, items: list[QueuedImage], error: BaseException) -> None:
        """Report an error of a call to one of its requests, which has these images in it."""
        spec = queue.spec
        # A version that a split names is the operator's choice: if no Triton serves it, that is no fault of the client.
        if spec.split and (isinstance(error, ModelNotFound) or type(error) is ModelUnavailable):
            version = f"Version {spec.model_version} of {spec.model_name!r}"
            unavailable = ModelUnavailable(f"{version}, which gets a share of the requests, is not loaded.")
            unavailable.__cause__ = error
            ends_request, error = isinstance(error, ModelNotFound), unavailable
        else:
            ends_request = not isinstance(error, GatewayError) or isinstance(error, RequestError)
        if not ends_request and isinstance(error, GatewayError):
            for item in items:
                self._finish(item, replace(item.file, error=error))
        elif items:
            queue.fail(error if isinstance(error, Exception) else ModelUnavailable())

    def _expire(self, item: QueuedImage) -> None:
        """Report that the deadline of an image has passed, while it waits or is in a call."""
        call = item.call
        self._finish(item, replace(item.file, error=DeadlineExceeded()))
        if call is not None:
            self._abandon_unless_open(item.queue.spec.model_name, call)

    def drop(self, item: QueuedImage) -> None:
        """Forget an image without a result, since its request has ended."""
        call = item.call
        self._forget(item)
        if call is not None:
            self._abandon_unless_open(item.queue.spec.model_name, call)

    def _abandon_unless_open(self, model_name: str, call: BatchCall) -> None:
        """Cancel a call without a caller if its Triton supports it; otherwise the call runs on, and is not counted."""
        if any(item.call is call for item in call.items) or call.task is None or call.task.done():
            return
        if call.cancellable:
            call.task.cancel()
            return
        model = self._models[model_name]
        self._uncount(model, call)
        self._send_waiting(model)

    def _uncount(self, model: ModelQueue, call: BatchCall) -> None:
        model.counted -= call.counted
        model.costly -= call.costly
        call.counted = call.costly = False

    def _finish(self, item: QueuedImage, result: Result) -> None:
        self._forget(item)
        item.permit.release()
        try:
            item.report(result, item.record)
        except Exception as error:  # must not affect other images of the call
            item.queue.fail(error)

    def _forget(self, item: QueuedImage) -> None:
        """Remove an image from its lane or call."""
        queue = item.queue
        queue.images.discard(item)
        if item.stage is not None:
            item.enter(None)
        if item.timer is not None:
            item.timer.cancel()
        if item.call is not None:
            item.call = None
        elif (images := queue.lanes.get(item.lane)) is not None and item in images:
            images.remove(item)
            if not images:
                del queue.lanes[item.lane]
            if not queue.lanes:
                self._models[queue.spec.model_name].waiting.pop(queue, None)


def _ignore(_error: Exception) -> None:
    """Do nothing."""


def _result(item: QueuedImage, row: Row, answer: InferResult, best_classes: int) -> Result:
    file, record = item.file, item.record
    damaged = file.damaged or row.damaged
    if damaged and item.queue.spec.strict and row.decoded and row.error is None:
        row = Row(decoded=True, error=DamagedImage())
    embedding = row.embedding
    if record is not None:
        record.seal, record.embedding, record.drift_reference = item.seal, embedding, answer.drift_reference
        record.best = row.best if len(row.best) else Predictions.of(row.predictions)[:best_classes]
        if item.queue.spec.embeddings is Embeddings.NONE:
            embedding = None  # only an observer asked for it
    return Result(
        file.index,
        file.filename,
        file.width,
        file.height,
        Answer(row.predictions, row.scores, embedding),
        row.error or (None if row.decoded else UndecodableImage()),
        None if row.error else answer.model_version,
        answer.multi_label,
        damaged,
    )
