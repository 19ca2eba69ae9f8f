"""Dynamic batching: the images of all requests in few calls.

An image leaves at once while a Triton is idle. While as many calls are out as keep the Tritons of its model busy, it
waits; each call that returns is followed by the next one, with images of similar size of one request or of many.
"""

import asyncio
import time
from dataclasses import replace
from functools import partial

import structlog

from gateway import metrics
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
from gateway.inference.backend import Batch, Call, Embeddings, InferResult, Row
from gateway.inference.observer import CallImage, Observers
from gateway.inference.prediction import Predictions
from gateway.inference.queues import ALONE, BatchCall, Lane, ModelQueue, QueuedImage, RequestQueue
from gateway.inference.result import Answer, Result
from gateway.inference.tools import Tools
from gateway.limits.admission import COSTLY_SECONDS

SEALED_INLINE_BYTES = 4 * 2**20
"""A larger image is sealed on a thread, so that it does not block the event loop; this one takes 0.6 ms."""


class Batcher:
    """Sends the images of all requests to the backend, and reports each result and releases its permit.

    A RequestError of the backend ends the requests of its call; every other error is the result of the call's images.
    """

    def __init__(self, tools: Tools, observers: Observers) -> None:
        self._backend = tools.backend
        self._limits = tools.batches
        self._uncancelled = tools.uncancelled
        self._observers = observers
        self._observed_embeddings = Embeddings.IF_ANY if observers.keep_embeddings else Embeddings.NONE
        """The embeddings that calls return if the client asks for none."""
        self._models: dict[str, ModelQueue] = {}

    async def add(self, item: QueuedImage) -> None:
        """Send an image, or let it wait for a call."""
        queue, payload, backend = item.queue, item.payload, self._backend
        if len(payload) > SEALED_INLINE_BYTES:
            item.seal = await asyncio.to_thread(backend.seal, payload)
        else:
            item.seal = backend.seal(payload)
        if queue.closed:
            return  # its permit ends with the request
        name, version = queue.spec.model_name, queue.spec.model_version
        model = self._models.get(name)
        mixes_lengths = model is None or model.limits is None or model.limits.mixed_lengths
        size = len(payload).bit_length() if mixes_lengths else len(payload)
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
        model.add(item)
        self._send_waiting(model)
        if item.call is None and item in queue.images:
            item.stage = queue.spec.stats.stages["wait"]
            item.stage.enter()

    def _send_waiting(self, model: ModelQueue) -> None:
        """Send calls while images wait that may leave."""
        while model.waiting and (items := model.next(self._backend, self._limits)):
            self._send(model, items)
        if model.limits is None and not (model.calls or model.waiting):
            del self._models[model.name]  # clients can request names of their own making

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
            if item.stage is not None:
                item.stage.leave()
            item.stage = item.queue.spec.stats.stages["infer"]
            item.stage.enter()
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
        batch_call.task = asyncio.get_running_loop().create_task(self._backend.infer(call), context=context)
        self._uncancelled.tasks.add(batch_call.task)
        batch_call.task.add_done_callback(partial(self._ended, model, batch_call))

    def _ended(self, model: ModelQueue, call: BatchCall, task: "asyncio.Task[InferResult]") -> None:
        """Send the next call, and report the results of the one that has ended."""
        metrics.CALL_SECONDS.observe(time.perf_counter() - call.began)
        self._uncancelled.tasks.discard(task)
        model.calls -= 1
        model.uncount(call)
        for queue in call.queues:
            queue.calls -= 1
        for item in call.items:
            item.permit.settle()
        error: BaseException | None = ModelUnavailable() if task.cancelled() else task.exception()
        if isinstance(error, InferenceFailed) and len(call.queues) > 1:
            # One image may be the cause: the images of other requests must not share its error.
            for item in call.open_items():
                item.call, item.lane = None, ALONE
                model.add(item)
        elif error is not None:
            open_items = call.open_items()
            for queue in call.queues:
                self._report_error(queue, [item for item in open_items if item.queue is queue], error)
        if model.waiting or model.limits is None:
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
        # A version with a share is the operator's choice: if no Triton serves it, that is no fault of the client.
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
        if any(item.call is call for item in call.items) or call.task.done():
            return
        if call.cancellable:
            call.task.cancel()
            return
        model = self._models[model_name]
        model.uncount(call)
        self._send_waiting(model)

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
            item.stage.leave()
            item.stage = None
        if item.timer is not None:
            item.timer.cancel()
        if item.call is not None:
            item.call = None
        elif queue.lanes:
            self._models[queue.spec.model_name].remove(item)


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
