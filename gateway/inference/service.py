"""The service: uploads of many requests in, one result for each out, and dynamic batching in between.

An image is sent immediately while a Triton server is idle. While the servers of its model are busy, it waits; each call
that returns is followed by the next one, with images of similar size from one or more requests. An image that a
response cache may hold has its own call, since the cache's key is the whole call.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

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
)
from gateway.inference.backend import Backend, BatchLimits, Call, CallLimits
from gateway.inference.request import (
    OWN_CALL,
    BatchGroup,
    DisconnectWatcher,
    Image,
    ImageRequest,
    Observers,
    Step,
    Take,
)
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Row
from gateway.inference.tasks import CLOSING_SECONDS, Tasks
from gateway.ingest.upload import UploadLimits, Uploads
from gateway.limits.account import Account
from gateway.limits.admission import COSTLY_SECONDS, COSTLY_SHARE, Admission

if TYPE_CHECKING:
    from gateway.ingest.decoder_pool import DecoderPool

CALL_SECONDS = 0.1
"""Expected seconds of decoding in one call; an image that takes longer is alone in its call."""
LIMITS_SECONDS = 1.0
"""How long the backend's limits of calls are cached."""
CallTask = asyncio.Task[Sequence[Row]]
"""A call in flight, with images of one request or several."""


class ModelQueue:
    """The requests that wait for calls of one model, and the calls in flight."""

    def __init__(self, name: str, backend: Backend, most: BatchLimits) -> None:
        self.name = name
        self._backend, self._most = backend, most
        self.waiting: dict[ImageRequest, None] = {}
        """Requests with waiting images, in the order of their turns."""
        self.calls: dict[CallTask, tuple[Call, list[Image]]] = {}
        """Calls in flight, with their images."""
        self.counted: set[CallTask] = set()
        self.costly: set[CallTask] = set()
        """Calls that keep the Triton servers busy, and the ones with costly images; abandoned calls do not count."""
        self.limits: CallLimits | None = None
        """The backend's limits of calls, at most LIMITS_SECONDS old at the last call; None if it does not know them."""
        self._limits_until = 0.0

    def add(self, image: Image) -> None:
        """Let an image wait."""
        groups = image.request.waiting
        if image.batch_group not in groups:
            groups[image.batch_group] = deque()
        groups[image.batch_group].append(image)
        self.waiting.setdefault(image.request)

    def remove(self, image: Image) -> None:
        """Forget a waiting image, if it waits."""
        request = image.request
        waiting = request.waiting.get(image.batch_group)
        if waiting is not None and image in waiting:
            waiting.remove(image)
            if not waiting:
                del request.waiting[image.batch_group]
            if not request.waiting:
                del self.waiting[request]

    def most_images(self, request: ImageRequest, group: BatchGroup) -> int:
        """How many images a call may have that begins with a group of a request; 0 if none may leave now."""
        most = self._most
        if request.calls >= most.max_calls:
            return 0
        now = asyncio.get_running_loop().time()
        if (limits := self.limits) is None or now >= self._limits_until:
            limits = self.limits = self._backend.call_limits(self.name, request.spec.model_version, most.max_images)
            self._limits_until = now + LIMITS_SECONDS
        if group is OWN_CALL:
            return 1
        if limits is None:
            return most.max_images
        is_busy = len(self.counted) >= limits.calls
        if is_busy or (group.costly and len(self.costly) >= max(1, int(limits.calls * COSTLY_SHARE))):
            return 0
        return min(most.max_images, limits.images)

    def next(self) -> list[Image]:
        """Take the images of the next call; none if none may leave now."""
        for request in self.waiting:
            for group in request.waiting:
                if max_images := self.most_images(request, group):
                    return self._take(request, group, max_images)
        return []

    def _take(self, first: ImageRequest, group: BatchGroup, max_images: int) -> list[Image]:
        """Take images of one group, round-robin by request from `first` on, until the call is full."""
        turns = deque((first,))
        if len(self.waiting) > 1 and max_images > 1:
            turns.extend(
                request
                for request in self.waiting
                if request is not first
                and group in request.waiting
                and request.call_parameters == first.call_parameters
                and request.calls < self._most.max_calls
            )
        items: list[Image] = []
        longest, seconds = 0, 0.0
        while turns and len(items) < max_images:
            request = turns.popleft()
            images = request.waiting[group]
            longest, seconds = max(longest, len(images[0].payload)), seconds + images[0].decode_seconds
            if items and (longest * (len(items) + 1) > self._most.max_bytes or seconds > CALL_SECONDS):
                break
            items.append(images.popleft())
            del request.waiting[group], self.waiting[request]
            if images:
                request.waiting[group] = images
                turns.append(request)
            if request.waiting:
                self.waiting[request] = None  # moved to the end of the round
        return items


SIGNED_INLINE_BYTES = 4 * 2**20
"""A larger image is signed on a thread, so that it does not block the event loop; this one takes 0.6 ms."""


@dataclass(eq=False)
class InferenceService:
    """Takes each upload of many requests through `steps` (see gateway.predict.image_steps), and sends the images.

    A RequestError of the backend ends the requests of its call; every other error is the result of the call's images.
    """

    backend: Backend
    admission: Admission
    limits: UploadLimits
    batches: BatchLimits
    decoders: "DecoderPool"
    steps: Sequence[Step]
    observers: Observers = field(default_factory=Observers)
    uncancelled: Tasks = field(default_factory=Tasks)
    _models: dict[str, ModelQueue] = field(default_factory=dict)

    async def run(
        self,
        uploads: Uploads,
        spec: RequestSpec,
        take: Take,
        disconnected: DisconnectWatcher | None = None,
        account: Account | None = None,
    ) -> None:
        """Classify uploads: `take` gets one result for each, in the order of completion.

        Raises an exception of `uploads`, `take` or `disconnected`, which ends the request; an error of one file is in
        its result. Each file has its result within `spec.timeout_seconds` of its last byte. Decoding is charged to
        `account`, or to a new one.

        At the end, all tasks of the request have ended and its permits are released. Exceptions are images in calls,
        and other work in `uncancelled`, that have not ended yet.
        """
        request = ImageRequest(self, spec, take, account)
        try:
            await request.run(uploads, disconnected)
        finally:
            request.close()

    async def close(self) -> None:
        """Wait a limited time for work that may outlive its request."""
        await self.uncancelled.close(CLOSING_SECONDS)

    async def add(self, image: Image) -> None:
        """Send an image, or let it wait for a call."""
        request, payload, backend = image.request, image.payload, self.backend
        on_thread = len(payload) > SIGNED_INLINE_BYTES
        image.signature = await asyncio.to_thread(backend.sign, payload) if on_thread else backend.sign(payload)
        if request.closed:
            return  # its permit ends with the request
        name, version = request.spec.model_name, request.spec.model_version
        model = self._models.get(name)
        if backend.needs_own_call(image.signature, name, version):
            image.batch_group = OWN_CALL
        else:
            image.batch_group = BatchGroup(len(payload).bit_length(), image.decode_seconds >= COSTLY_SECONDS)
        request.images.add(image)
        left_seconds = image.deadline.left_seconds
        image.timer = asyncio.get_running_loop().call_later(left_seconds, self._expire, image)
        if not left_seconds:
            self._expire(image)
            return
        if model is None:
            model = self._models[name] = ModelQueue(name, backend, self.batches)
        if not model.waiting and model.most_images(request, image.batch_group):
            self._send(model, [image])
            return
        model.add(image)
        self._send_waiting(model)
        if image.call is None and image in request.images:
            image.stage = request.stages["wait"]
            image.stage.enter()

    def _send_waiting(self, model: ModelQueue) -> None:
        """Send calls while images wait that may leave."""
        while model.waiting and (images := model.next()):
            self._send(model, images)
        if model.limits is None and not (model.calls or model.waiting):
            del self._models[model.name]  # clients can request arbitrary names

    def _send(self, model: ModelQueue, images: list[Image]) -> None:
        requests: dict[ImageRequest, None] = {}
        payloads, signatures, deadline = [], [], images[0].deadline
        for image in images:
            requests[image.request] = None
            payloads.append(image.payload)
            signatures.append(image.signature)
            deadline = max(deadline, image.deadline)
            if image.stage is not None:
                image.stage.leave()
            image.stage = image.request.stages["infer"]
            image.stage.enter()
            image.permit.pin()  # the image is in Triton until the call ends, even if its request has ended
        for request in requests:
            request.calls += 1
        request, group = images[0].request, images[0].batch_group
        spec, context, request_id = request.spec, request.context, request.spec.request_id
        if len(requests) > 1:
            request_id = ",".join([request.spec.request_id for request in requests])
            context = context.copy()
            context.run(structlog.contextvars.bind_contextvars, request_id=request_id)
        call = Call(
            payloads,
            spec.model_name,
            spec.model_version,
            spec.selection,
            deadline,
            request_id,
            signatures,
            run_to_completion=not self.backend.supports_cancellation,
            embeddings=spec.embeddings,
            least_classes=self.observers.best_classes,
        )
        metrics.BATCH_IMAGES.observe(len(images))
        task = asyncio.get_running_loop().create_task(self.backend.infer(call), context=context)
        for image in images:
            image.call = task
        model.calls[task] = call, images
        if group is not OWN_CALL:
            model.counted.add(task)
        if group.costly:
            model.costly.add(task)
        self.uncancelled.running.add(task)
        task.add_done_callback(partial(self._ended, model, time.perf_counter()))

    def _ended(self, model: ModelQueue, began: float, task: CallTask) -> None:
        """Send the next call, and report the results of the ended one."""
        metrics.CALL_SECONDS.observe(time.perf_counter() - began)
        self.uncancelled.running.discard(task)
        _, images = model.calls.pop(task)
        model.counted.discard(task)
        model.costly.discard(task)
        requests: dict[ImageRequest, list[Image]] = {}
        for image in images:
            image.permit.unpin()
            open_images = requests.setdefault(image.request, [])
            if image.call is task:
                open_images.append(image)
        for request in requests:
            request.calls -= 1
        error: BaseException | None = ModelUnavailable() if task.cancelled() else task.exception()
        if isinstance(error, InferenceFailed) and len(images) > 1:
            # One image may be the cause: the others must not share its error.
            for image in chain.from_iterable(requests.values()):
                image.call, image.batch_group = None, OWN_CALL
                model.add(image)
        elif error is not None:
            for request, open_images in requests.items():
                self._report_error(request, open_images, error)
        if model.waiting or model.limits is None:
            self._send_waiting(model)
        if error is None:
            self._report_rows(task, images)

    def _report_rows(self, task: CallTask, images: Sequence[Image]) -> None:
        observed = self.observers.call_done
        answered: dict[ImageRequest, list[tuple[Image, Row]]] = {}
        for image, row in zip(images, task.result(), strict=True):
            if image.call is not task:
                continue
            row.damaged = row.damaged or image.damaged
            if row.damaged and row.error is None and image.request.spec.strict:
                row = Row(error=DamagedImage(), damaged=True)
            self._finish(image, row)
            if observed:
                answered.setdefault(image.request, []).append((image, row))
        for request, rows in answered.items():  # all results are reported, and all permits released
            for call_done in observed:
                call_done(request.spec, rows)

    def _report_error(self, request: ImageRequest, images: list[Image], error: BaseException) -> None:
        """Report an error of a call to one of its requests, which has these images in it."""
        spec = request.spec
        # A version with a share is the operator's choice: if no Triton serves it, the client is not at fault.
        if spec.split and (isinstance(error, ModelNotFound) or type(error) is ModelUnavailable):
            version = f"Version {spec.model_version} of {spec.model_name!r}"
            unavailable = ModelUnavailable(f"{version}, which gets a share of the requests, is not loaded.")
            unavailable.__cause__ = error
            ends_request, error = isinstance(error, ModelNotFound), unavailable
        else:
            ends_request = not isinstance(error, GatewayError) or isinstance(error, RequestError)
        if not ends_request and isinstance(error, GatewayError):
            for image in images:
                self._finish(image, Row(error=error, damaged=image.damaged))
        elif images:
            request.fail(error if isinstance(error, Exception) else ModelUnavailable())

    def _expire(self, image: Image) -> None:
        """Report that the deadline of an image has passed, while it waits or is in a call."""
        self._finish(image, Row(error=DeadlineExceeded(), damaged=image.damaged))

    def _finish(self, image: Image, row: Row) -> None:
        self.drop(image)
        image.permit.release()
        try:
            image.report(image, image.result(row))
        except Exception as error:  # must not affect other images of the call
            image.request.fail(error)

    def drop(self, image: Image) -> None:
        """Forget an image, which has its result or whose request has ended: remove it from its group or call."""
        request, task = image.request, image.call
        request.images.discard(image)
        if image.stage is not None:
            image.stage.leave()
            image.stage = None
        if image.timer is not None:
            image.timer.cancel()
        if task is not None:
            image.call = None
            if not task.done():
                self._abandon_unless_open(request.spec.model_name, task)
        elif request.waiting:
            self._models[request.spec.model_name].remove(image)

    def _abandon_unless_open(self, model_name: str, task: CallTask) -> None:
        """Cancel a call without a caller if its Triton supports it; otherwise the call runs on, and is not counted."""
        model = self._models[model_name]
        call, images = model.calls[task]
        if any(image.call is task for image in images):
            return
        if not call.run_to_completion:
            task.cancel()
            return
        model.counted.discard(task)
        model.costly.discard(task)
        self._send_waiting(model)
