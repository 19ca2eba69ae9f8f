"""One request on its way: its uploads become images, and each result goes to the request's caller.

gateway/predict.py describes the steps of an image; service.py decides which images share a call.
"""

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import anyio
import structlog

from gateway.errors import (
    DeadlineExceeded,
    GatewayError,
    ImageError,
    LoadFailed,
    ModelUnavailable,
    Overloaded,
    ServiceError,
    TritonUnreachable,
)
from gateway.inference.backend import Backend, BatchLimits
from gateway.inference.request_spec import Report, RequestSpec, Stage
from gateway.inference.result import Prediction, Result, Row
from gateway.inference.tasks import Tasks
from gateway.ingest.image_formats import Header, Size
from gateway.ingest.inspection import MAX_SIDE
from gateway.ingest.upload import Upload, UploadLimits, Uploads
from gateway.limits.account import Account
from gateway.limits.admission import Admission
from gateway.limits.bounds import Lease
from gateway.timing import Deadline, TimeSlice
from gateway.values.arguments import adapt

if TYPE_CHECKING:
    from gateway.ingest.decoder_pool import DecoderPool

log = structlog.get_logger("gateway")

T = TypeVar("T")

NOT_SERVED = (Overloaded, ModelUnavailable, LoadFailed, TritonUnreachable)
"""Errors that end a request without a permit yet: the whole request may be sent again."""

DisconnectWatcher = Callable[[], Awaitable[None]]
"""Waits until the results are no longer needed, for example since the client has disconnected, and then raises."""
Take = Callable[[Result], None]
"""Takes the result of a file when it is ready; an error that it raises ends the request."""
Step = Callable[["Image"], Awaitable[bool | None]]
"""Does one thing with an image; True if no other step applies to it.

An ImageError or ServiceError becomes the result of its file."""


class BatchGroup(NamedTuple):
    """Images that may share a call: similar in size and in the time to decode them.

    A batch is padded to its longest image. Images whose sizes share their highest bit differ by less than a factor of
    two, so padding less than doubles the bytes.
    """

    size: int
    """Bits of the length."""
    costly: bool


OWN_CALL = BatchGroup(0, costly=False)
"""The group of images with one call each, in addition to the calls that keep the Triton servers busy."""


class Image:
    """An upload from its last byte to its result: the findings of the steps, and the resources that it holds.

    An upload that becomes several images has a copy for each of them; see `add`.
    """

    __slots__ = (
        "batch_group",
        "call",
        "damaged",
        "deadline",
        "decode_seconds",
        "header",
        "payload",
        "permit",
        "report",
        "request",
        "signature",
        "size",
        "stage",
        "timer",
        "upload",
    )

    permit: Lease
    batch_group: BatchGroup

    def __init__(self, request: "ImageRequest", upload: Upload) -> None:
        self.request = request
        self.upload = upload
        self.deadline = Deadline.after(request.spec.timeout_seconds)
        self.header: Header | None = None
        """None until it is read."""
        self.damaged = False
        """Whether a decoder of the gateway has found the image's data damaged."""
        expansion = request.spec.expansion
        self.report: Report = request.report if expansion is None else expansion.single(request.report)
        """Called with the image and the result."""
        self.size: Size | None = None
        """The decoder's output size; None if the image goes to Triton as it is."""
        self.decode_seconds = 0.0
        """Expected processor time of decoding in the preprocessor."""
        self.payload = b""
        """The bytes for Triton."""
        self.signature = b""
        self.timer: asyncio.TimerHandle | None = None
        self.call: asyncio.Task[Sequence[Row]] | None = None
        """The call that the image is in; None before."""
        self.stage: Stage | None = None
        """The stage of the request's statistics that it has entered, and leaves with its result."""

    @property
    def spec(self) -> RequestSpec:
        """The parameters of the request."""
        return self.request.spec

    def result(self, row: Row) -> Result:
        """The result of the file."""
        upload, header = self.upload, self.header
        if header is None:
            return Result(upload.index, upload.filename, row=row)
        return Result(upload.index, upload.filename, header.width, header.height, row)

    def fail(self, error: GatewayError) -> None:
        """Report an error of the image as its result."""
        self.report(self, self.result(Row(error=error, damaged=self.damaged)))

    async def charge(self) -> None:
        """Charge one image to the API key; waits while its rate is used up. Raises RateLimited."""
        request = self.request
        most_seconds = self.deadline.left_seconds if request.admitted else request.service.admission.max_wait_seconds
        await request.spec.caller.charge(most_seconds, request.stages)

    async def decoded_size(self, max_side: int = MAX_SIDE) -> Size:
        """The decoder's output: the model's input if it takes tensors, or the size of its preprocessor.

        If that is not known, the shorter side has at most `max_side` pixels.
        """
        service, spec = self.request.service, self.request.spec
        if (tensor := self.request.tensor_input) is not None:
            return tensor
        work = service.backend.resize(spec.model_name, spec.model_version)
        resize = None
        with suppress(GatewayError):  # the call with the image reports the error
            resize = await (work if service.backend.supports_cancellation else service.uncancelled.run(work))
        return resize or max_side

    async def add(self, permit: Lease, make: Callable[[], Awaitable[tuple[bytes, Report]]]) -> None:
        """Queue one of several images of the upload, which has its permit; `make` returns its payload and report.

        The file pays for the first image; charge the API key for each other one before its permit is acquired.
        """
        request = self.request
        try:
            with request.stages["prepare"]:
                payload, report = await make()
        except BaseException:
            permit.release()
            raise
        request.account.add_image()
        request.service.admission.decoded(permit, len(payload))
        image = copy.copy(self)
        image.payload, image.permit, image.report = payload, permit, report
        await request.service.add(image)


class Service(Protocol):
    """What requests need of InferenceService; see gateway.inference.service."""

    backend: Backend
    admission: Admission
    limits: UploadLimits
    batches: BatchLimits
    decoders: "DecoderPool"
    uncancelled: Tasks
    """Work that may outlive its request: calls, and work that cannot be cancelled."""
    observers: "Observers"
    steps: Sequence[Step]

    async def add(self, image: Image) -> None:
        """Send an image, or let it wait for a call."""
        ...

    def drop(self, image: Image) -> None:
        """Forget an image without a result, since its request has ended."""
        ...


class ImageRequest:
    """Reads the uploads of one request, takes each through the steps, and gives each result to `take`.

    `run` works in its caller's task and interrupts the task's waits as asyncio.timeout does, by a cancellation that it
    takes back. Other tasks decode images, and one runs `disconnected` if `run` waits while it reads the uploads.
    `close` drops the images without a result, and releases all permits.
    """

    def __init__(self, service: Service, spec: RequestSpec, take: Take, account: Account | None = None) -> None:
        self.service = service
        self.spec = spec
        self.stages = spec.stats.stages
        self.context = copy_context()
        """The request's trace and log fields."""
        self.call_parameters = (spec.model_version, spec.selection, spec.embeddings)
        """Images of several requests share a call if these are equal."""
        self.tensor_input = service.backend.tensor_input(spec.model_name)
        """How a decoder makes the model's input; None of a model that takes files."""
        self.account = account or service.decoders.account(client=spec.caller)
        self.admitted = False
        """Whether an image has had a permit."""
        self._permits: set[Lease] = set()
        self._permit_released: asyncio.Event | None = None
        """Set by the next release of a permit, while the request has too many."""
        # More images would only wait, with permits that other requests could use.
        self._most_permits = service.batches.max_calls * service.batches.max_images
        self._take = take
        self.images: set[Image] = set()
        """Images that wait for a call or are in one."""
        self.waiting: dict[BatchGroup, deque[Image]] = {}
        """The images that wait for a call; groups alternate."""
        self.calls = 0
        """Calls in flight with images of this request."""
        self.closed = False
        self._open = 0
        """Uploads without a result."""
        self._read_all = self._watched = self._interrupted = False
        self._failure: Exception | None = None
        self._task: asyncio.Task[object] | None = None
        """The task of `run`, while it may be interrupted."""
        self._tasks: Tasks | None = None

    async def run(self, uploads: Uploads, disconnected: DisconnectWatcher | None) -> None:
        """Read all uploads, and return when each has its result.

        Raises what ends the request before: an error of `uploads`, `disconnected` or `take`, or one of the whole
        request in a step or a call. No task of the request is left then.
        """
        self._task = task = asyncio.current_task()
        assert task is not None
        cancellations = task.cancelling()
        loop = asyncio.get_running_loop()
        watch = None if disconnected is None else loop.call_soon(self._watch, disconnected)
        try:
            await self._read(uploads)
            self._read_all = True
            if self._open and self._failure is None:
                if watch is not None:
                    watch.cancel()
                await (loop.create_future() if self._watched or disconnected is None else disconnected())
        except asyncio.CancelledError:
            if not self._interrupted or task.cancelling() > cancellations + 1:
                raise
        finally:
            self._task = None
            if self._interrupted:
                task.uncancel()
            if watch is not None:
                watch.cancel()
            if self._tasks is not None:
                await self._tasks.close()
        if self._failure is not None:
            try:
                raise self._failure
            finally:
                self._failure = None  # its traceback keeps the request

    def spawn(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Do some of the request's work in another task; an exception ends the request."""
        if self._tasks is None:
            self._tasks = Tasks()
        self._tasks.start(self._guard(work, *arguments))

    async def permit(self, nbytes: int, deadline: Deadline, decode_seconds: float = 0) -> Lease:
        """Wait until the request may have another image in flight, and then for the image's permit.

        Raises DeadlineExceeded, or Overloaded if too many images wait or the request's first one waits too long.
        """
        admission, permits = self.service.admission, self._permits
        wait = self.stages["wait"]  # reported also if there is no wait
        permit = admission.permit(
            nbytes,
            decode_seconds,
            self.spec.caller,
            first=not self.admitted,
            lowest=self.spec.lowest_priority,
            on_release=self._release,
        )
        if len(permits) >= self._most_permits or not permit.try_acquire():
            left_seconds = deadline.left_seconds
            most_seconds = left_seconds if self.admitted else min(left_seconds, admission.max_wait_seconds)
            with wait, anyio.move_on_after(most_seconds) as waiting:
                while len(permits) >= self._most_permits:
                    self._permit_released = asyncio.Event()
                    await self._permit_released.wait()
                await permit.acquire()
            if waiting.cancelled_caught:
                if most_seconds == left_seconds:
                    raise DeadlineExceeded
                raise Overloaded(
                    f"The request's first image could not be processed within {most_seconds:g} s; try again later.",
                    limit="max_wait_seconds",
                    value=most_seconds,
                )
        self.admitted = True
        permits.add(permit)
        return permit

    def _release(self, permit: Lease) -> None:
        self._permits.discard(permit)
        if self._permit_released is not None:
            self._permit_released.set()
            self._permit_released = None

    def report(self, image: Image, result: Result) -> None:
        """Take the result of a file: it is counted, the observers see it, and the caller gets it."""
        row = result.row
        if row.error is not None:
            _drop_tracebacks(row.error)
        self._open -= 1
        if not self.spec.lowest_priority:
            for done in self.service.observers.done:
                done(image, row)
        self.spec.count(result)
        self._take(result)
        if self._read_all and self._open == 0:
            self._interrupt()

    def fail(self, error: Exception) -> None:
        """Drop every image, and end the request with its first error."""
        if not self.closed:
            self._drop_images()
            self._failure = error
            self._interrupt()

    def close(self) -> None:
        """Drop every image: those in calls with other requests' images are computed, but have no result."""
        self._drop_images()
        self._take = nothing  # an observer may keep an image, but not the uploads of its request
        for permit in tuple(self._permits):
            permit.release()

    def _drop_images(self) -> None:
        self.closed = True
        # Waiting ones first: a call that is abandoned frees its place, and must not be followed by one with them.
        for image in sorted(self.images, key=lambda image: image.call is not None):
            self.service.drop(image)

    async def _read(self, uploads: Uploads) -> None:
        """Take each upload through the steps as soon as it has arrived; an error of the file becomes its result.

        The next one is read once this one has its permit.
        """
        read = self.stages["read"]
        over: TimeSlice | None = None
        try:
            while self._failure is None:
                with read:
                    upload = await anext(uploads, None)
                if upload is None:
                    break
                self._open += 1
                if over is not None:  # the header alone may take 20 ms
                    await over.pause()
                time_slice = TimeSlice()
                image = Image(self, upload)
                try:
                    for step in self.service.steps:
                        if await step(image):
                            break
                except (ImageError, ServiceError) as error:
                    if isinstance(error, NOT_SERVED) and not self.admitted:
                        raise
                    image.fail(error)
                over = time_slice if time_slice.is_over else None
                del upload, image  # a client may take long to send the next one
        finally:
            await uploads.aclose()

    def _watch(self, disconnected: DisconnectWatcher) -> None:
        self._watched = True
        self.spawn(disconnected)

    async def _guard(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        try:
            await work(*arguments)
        except Exception as failure:  # raised by run
            self.fail(failure)

    def _interrupt(self) -> None:
        """Interrupt `run` if it waits."""
        task = self._task
        if task is not None and not self._interrupted and asyncio.current_task() is not task:
            self._interrupted = True
            task.cancel()


class Observer:
    """Sees images and their rows. A method that is not overridden costs nothing; none waits or raises.

    Copy what you need of an image immediately: a reference to it keeps its request alive.
    """

    best_classes: int = 0
    """The number of best classes in each row's `best`, regardless of the request's selection."""
    keeps_files: bool = False
    """Whether `done` needs `image.upload.data`; if not, the file of an image that was decoded here is empty by then."""
    takes_feedback: bool = False
    """Whether clients may report true labels."""

    def done(self, image: Image, row: Row) -> None:
        """Take the finished row of one file; of one with several images, the first of them that was answered."""

    def call_done(self, spec: RequestSpec, images: Sequence[tuple[Image, Row]]) -> None:
        """Take the images of one request that were in a call, with their rows, after their results."""

    def disagreed(self, image: Image, row: Row, version: str, best: Prediction) -> None:
        """Take an image whose top-1 class differs from `best`, the top-1 class of a shadow version."""


class Observers:
    """All observers of a service; calls those that override a method.

    An observer's exception is logged with its name and affects no request.
    """

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self.done = _calls(observers, Observer.done)
        self.call_done = _calls(observers, Observer.call_done)
        self.disagreed = _calls(observers, Observer.disagreed)
        self.keep_files = any(each.keeps_files for each in observers)
        self.best_classes = max((each.best_classes for each in observers), default=0)
        self.take_feedback = any(each.takes_feedback for each in observers)


def _calls(observers: Sequence[Observer], method: Callable[..., None]) -> list[Callable[..., None]]:
    """The calls of a method of the observers that override it."""
    name = method.__name__
    return [
        partial(_call, f"{type(each).__module__}.{type(each).__qualname__}", name, adapt(getattr(each, name), method))
        for each in observers
        if getattr(type(each), name) is not method
    ]


def _call(observer: str, method: str, see: Callable[..., None], *arguments: object) -> None:
    try:
        see(*arguments)
    except Exception:
        log.exception("observer_failed", observer=observer, method=method)


def nothing(_: Result) -> None:
    """Take no result."""


async def within(deadline: Deadline, work: Awaitable[T]) -> T:
    """The result of `work`; at the deadline it is cancelled, and DeadlineExceeded is raised."""
    with anyio.move_on_after(deadline.left_seconds):
        return await work
    raise DeadlineExceeded


def _drop_tracebacks(error: BaseException | None) -> None:
    """Release the stack frames of an error and its causes: they may hold megabytes of the image."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
