"""The calls of one request: batches of images of similar size, at most `max_calls` in flight at once."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import anyio

from gateway import metrics
from gateway.deadline import Deadline
from gateway.errors import (
    DeadlineExceeded,
    GatewayError,
    ModelNotFound,
    ModelUnavailable,
    RequestError,
    UndecodableImage,
)
from gateway.inference.backend import Backend, Batch, Call, InferResult, Row
from gateway.inference.planner import BatchPlanner
from gateway.inference.request_spec import RequestSpec, Result
from gateway.inference.shadow import Shadows
from gateway.inference.uncancelled import Uncancelled
from gateway.ingest.decoders.pool import Decoders
from gateway.ingest.image_info import ImageInfo
from gateway.ingest.prepare import DecodePolicy, Image
from gateway.ingest.upload import Upload
from gateway.limits.admission import Admission, Permit

T = TypeVar("T")

ResultCallback = Callable[[Result], None]
"""Takes the result of one image."""

Spawn = Callable[..., None]
"""Starts a coroutine function with its arguments in the request's scope."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How one request's images are batched: `max_calls` in flight, each of at most `max_images` and `max_bytes`."""

    max_images: int
    max_bytes: int
    max_calls: int


@dataclass(frozen=True, slots=True)
class Shared:
    """Objects that all requests of a process share."""

    backend: Backend
    admission: Admission
    policy: DecodePolicy
    batches: BatchLimits
    decoders: Decoders
    uncancelled: Uncancelled
    shadows: Shadows


@dataclass(slots=True)
class InFlight:
    """An image with its permit that waits for its result; `answer` is called with it."""

    image: Image
    permit: Permit
    deadline: Deadline
    answer: ResultCallback


class Calls:
    """Sends images with their permits to the backend, reports each result and releases its permit.

    A RequestError of the backend ends the request; every other error is the result of the images in that call.
    """

    def __init__(self, shared: Shared, query: RequestSpec, spawn: Spawn) -> None:
        self._shared = shared
        self._query = query
        self._spawn = spawn
        self._in_flight = 0
        self._planner: BatchPlanner[InFlight] = BatchPlanner(
            shared.batches.max_images, shared.batches.max_bytes, size=lambda item: len(item.image.payload)
        )

    def add(self, item: InFlight) -> None:
        """Send an image: at once if a call is free; otherwise it is batched until one is."""
        self._planner.add(item)
        if self._in_flight < self._shared.batches.max_calls:
            self._in_flight += 1
            self._spawn(self._call_while_images_wait, self._planner.take())

    async def _call_while_images_wait(self, items: list[InFlight]) -> None:
        while items:
            await self._call(items)
            items = self._planner.take()
        self._in_flight -= 1

    def _version_not_loaded(self) -> ModelUnavailable:
        """The error of a version that a split names and no Triton serves."""
        name, version = self._query.model_name, self._query.model_version
        return ModelUnavailable(f"Version {version} of {name!r}, which gets a share of the requests, is not loaded.")

    async def _call(self, items: list[InFlight]) -> None:
        results: list[Result]
        answer: InferResult | None = None
        try:
            with self._query.tally.stages["infer"]:
                answer = await self._infer(items)
        except RequestError as error:
            # No such model: an error of the request, not of its files; or of the operator's split.
            if self._query.split and isinstance(error, ModelNotFound):
                raise self._version_not_loaded() from error
            raise
        except GatewayError as error:
            if self._query.split and type(error) is ModelUnavailable:  # not of a process that died
                error = self._version_not_loaded()
            results = [failed(item.image, item.image, error) for item in items]
        else:
            results = [_answered(item.image, row, answer) for item, row in zip(items, answer.rows, strict=True)]
        finally:
            for item in items:
                item.permit.release()
        for item, result in zip(items, results, strict=True):
            item.answer(result)
        if answer is not None:  # after the results are reported and the permits released
            self._shared.shadows.offer(self._query, [item.image.payload for item in items], answer)

    async def _infer(self, items: list[InFlight]) -> InferResult:
        deadline = min(item.deadline for item in items)
        if deadline.passed:
            raise DeadlineExceeded
        metrics.BATCH_IMAGES.observe(len(items))
        batch = Batch([item.image.payload for item in items])
        query, backend = self._query, self._shared.backend
        cancellable = backend.supports_cancellation
        name, version, selection = query.model_name, query.model_version, query.selection
        call = Call(
            batch,
            name,
            version,
            selection,
            deadline,
            query.request_id,
            run_to_completion=not cancellable,
            vectors=query.vectors,
        )
        with metrics.CALL_SECONDS.time():
            if cancellable:
                return await by(deadline, backend.infer(call))
            permits = [item.permit for item in items]
            return await by(deadline, self._shared.uncancelled.run(backend.infer(call), permits))


async def by(deadline: Deadline, work: Awaitable[T]) -> T:
    """The result of `work`; at the deadline it is cancelled, and DeadlineExceeded is raised."""
    with anyio.move_on_after(deadline.left_seconds):
        return await work
    raise DeadlineExceeded


def failed(file: Upload | Image, size: ImageInfo | Image, error: GatewayError) -> Result:
    """The error result of a file whose width and height are known."""
    return Result(file.index, file.filename, size.width, size.height, error=error)


def _answered(image: Image, row: Row, answer: InferResult) -> Result:
    return Result(
        image.index,
        image.filename,
        image.width,
        image.height,
        row.predictions,
        row.scores,
        row.vector,
        row.error or (None if row.decoded else UndecodableImage()),
        None if row.error else answer.model_version,
        answer.multi_label,
    )
