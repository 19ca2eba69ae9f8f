"""Uploads in, one result for each out: the path of a request between HTTP and the inference server."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from gateway import metrics
from gateway.deadline import Deadline
from gateway.errors import (
    DeadlineExceeded,
    GatewayError,
    ImageError,
    ModelNotFound,
    ModelUnavailable,
    Overloaded,
    RequestError,
    UndecodableImage,
)
from gateway.inference.admission import Admission, Permit
from gateway.inference.backend import Backend, Batch, Call, InferResult, Row
from gateway.inference.planner import BatchPlanner
from gateway.inference.query import Query, Result
from gateway.ingest.image_info import ImageInfo
from gateway.ingest.padding import pad
from gateway.ingest.prepare import DecodePolicy, Image, bytes_needed, examine, finish, needs_decoding
from gateway.ingest.upload import Upload


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How one request's images are cut into calls: `max_calls` of at most `max_images` and `max_bytes` at once."""

    max_images: int
    max_bytes: int
    max_calls: int


class InferenceService:
    """Classifies the uploads of many requests at once."""

    def __init__(
        self,
        backend: Backend,
        admission: Admission,
        policy: DecodePolicy,
        batches: BatchLimits,
        decoders: ThreadPoolExecutor,
    ) -> None:
        self.backend = backend
        self.admission = admission
        self.policy = policy
        self.batches = batches
        self.decoders = decoders

    async def classify(self, uploads: AsyncIterable[Upload], query: Query) -> AsyncGenerator[Result, None]:
        """Yield one result for each upload, in the order in which they are ready.

        What `uploads` raises ends the request and is raised here; what befalls one file stands in its result. A file
        waits for its answer for `query.timeout_seconds` at most, from its last byte on. Closing the iterator cancels
        what is still in flight.
        """
        request = _Request(self, query)
        request.spawn(request.read(uploads))
        try:
            while (result := await request.results.get()) is not None:
                query.tally.count(result.error, result.model_version)
                _count(result, query.model_name)
                yield result
            if request.failure is not None:
                raise request.failure
        finally:
            await request.close()


@dataclass(slots=True)
class _InFlight:
    """An image that has its permit and waits for its answer."""

    image: Image
    permit: Permit
    deadline: Deadline


class _Request:
    """One request on its way: a reader, the calls in flight, and the results that are ready (None: no more)."""

    def __init__(self, service: InferenceService, query: Query) -> None:
        self._service = service
        self._query = query
        self._stages = query.tally.stages
        self._planner: BatchPlanner[_InFlight] = BatchPlanner(
            service.batches.max_images, service.batches.max_bytes, size=lambda item: len(item.image.payload)
        )
        # More than the calls can take would only sit here, and be in the way of other requests' images.
        self._places = asyncio.Semaphore(service.batches.max_calls * service.batches.max_images)
        self._calls: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._permits: set[Permit] = set()  # of images that no call has taken over yet
        self._open = 0
        self._begun = self._read_all = self._closed = False
        self.results: asyncio.Queue[Result | None] = asyncio.Queue()
        self.failure: BaseException | None = None

    def spawn(self, coroutine: Coroutine[None, None, None], tasks: set["asyncio.Task[None]"] | None = None) -> None:
        """Run beside the others until the request is over; one that fails ends the request."""
        tasks = self._tasks if tasks is None else tasks
        task = asyncio.ensure_future(coroutine)
        tasks.add(task)
        task.add_done_callback(partial(self._finished, tasks))

    async def close(self) -> None:
        """Cancel what still runs and give its permits back.

        Calls run on where the server does not bear their cancellation, and keep their permits meanwhile: the images
        are in its queue all the same.
        """
        self._closed = True
        cancelled = self._tasks | self._calls if self._service.backend.bears_cancellation else set(self._tasks)
        for task in cancelled:
            task.cancel()
        await asyncio.gather(*cancelled, return_exceptions=True)
        for permit in self._permits:
            permit.release()

    async def read(self, uploads: AsyncIterable[Upload]) -> None:
        """Let each upload start its way as soon as it is there; while too much is in flight, read no further."""
        iterator = aiter(uploads)
        while True:
            with self._stages["read"]:
                upload = await anext(iterator, None)
            if upload is None:
                break
            self._open += 1
            await self._admit(upload)
        self._read_all = True
        self._end_if_done()

    async def _admit(self, upload: Upload) -> None:
        try:
            with self._stages["prepare"]:
                info = examine(upload, self._service.policy)
        except ImageError as error:
            self._answer(Result(upload.index, upload.filename, error=error))
            return
        deadline = Deadline.after(self._query.timeout_seconds)
        try:
            with self._stages["wait"]:
                permit = await self._permit(bytes_needed(upload, info, self._service.policy))
        except DeadlineExceeded as error:
            self._answer(Result(upload.index, upload.filename, info.width, info.height, error=error))
            return
        if needs_decoding(info, self._service.policy):
            self.spawn(self._decode(upload, info, permit, deadline))
        else:
            self._plan(_InFlight(finish(upload, info, self._service.policy), permit, deadline))

    async def _permit(self, nbytes: int) -> Permit:
        """Wait for a place among this request's images, then for one among all.

        Raises DeadlineExceeded, or Overloaded where the wait for the first image's turn is too long.
        """
        permit = None if self._places.locked() else self._service.admission.try_acquire(nbytes)
        if permit is not None:
            await self._places.acquire()
        else:
            first = self._query.timeout_seconds if self._begun else self._service.admission.max_wait_seconds
            timeout_seconds = min(first, self._query.timeout_seconds)
            try:
                permit = await asyncio.wait_for(self._wait_for_permit(nbytes), timeout_seconds)
            except TimeoutError as exc:
                if timeout_seconds < self._query.timeout_seconds:
                    raise Overloaded(
                        f"The first image's turn did not come within {timeout_seconds:g} s; try again later.",
                        limit="max_wait_seconds",
                        value=timeout_seconds,
                    ) from exc
                raise DeadlineExceeded from exc
        self._begun = True
        self._permits.add(permit)
        return permit

    async def _wait_for_permit(self, nbytes: int) -> Permit:
        await self._places.acquire()
        try:
            return await self._service.admission.acquire(nbytes)
        except BaseException:
            self._places.release()
            raise

    async def _decode(self, upload: Upload, info: ImageInfo, permit: Permit, deadline: Deadline) -> None:
        loop = asyncio.get_running_loop()
        try:
            with self._stages["prepare"]:
                image = await loop.run_in_executor(self._service.decoders, finish, upload, info, self._service.policy)
        except ImageError as error:
            self._permits.discard(permit)
            self._release(permit)
            self._answer(Result(upload.index, upload.filename, info.width, info.height, error=error))
        else:
            permit.shrink(len(image.payload))
            self._plan(_InFlight(image, permit, deadline))

    def _plan(self, item: _InFlight) -> None:
        self._planner.add(item)
        self._call_next()

    def _call_next(self) -> None:
        """Keep the calls busy: a lone image leaves at once, and while all calls are out, images gather to a batch."""
        while not self._closed and len(self._calls) < self._service.batches.max_calls:
            items = self._planner.take()
            if not items:
                return
            self._permits.difference_update(item.permit for item in items)
            self.spawn(self._call(items), self._calls)

    async def _call(self, items: list[_InFlight]) -> None:
        results: list[Result]
        try:
            with self._stages["infer"]:
                answer = await self._infer(items)
        except RequestError as error:
            # No such model: the fault of the request, not of these files; or of who has set the split.
            if self._query.split and isinstance(error, ModelNotFound):
                name, version = self._query.model_name, self._query.model_version
                raise ModelUnavailable(
                    f"Version {version} of {name!r}, to which a share of the requests goes, is not loaded."
                ) from error
            raise
        except GatewayError as error:
            results = [_failed(item.image, error) for item in items]
        else:
            results = [_answered(item.image, row, answer) for item, row in zip(items, answer.rows, strict=True)]
        finally:
            for item in items:
                self._release(item.permit)
        for result in results:
            self._answer(result)

    async def _infer(self, items: list[_InFlight]) -> InferResult:
        deadline = min(item.deadline for item in items)
        if deadline.passed:
            raise DeadlineExceeded
        metrics.BATCH_IMAGES.observe(len(items))
        batch = Batch(*pad([item.image.payload for item in items]))
        for item in items:
            item.image = replace(item.image, payload=b"")  # the batch has it, and memory counts
        with metrics.CALL_SECONDS.time():
            return await self._service.backend.infer(
                Call(
                    batch,
                    model_name=self._query.model_name,
                    model_version=self._query.model_version,
                    selection=self._query.selection,
                    deadline=deadline,
                    request_id=self._query.request_id,
                )
            )

    def _release(self, permit: Permit) -> None:
        self._places.release()
        permit.release()

    def _answer(self, result: Result) -> None:
        self._open -= 1
        self.results.put_nowait(result)
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._read_all and self._open == 0:
            self.results.put_nowait(None)

    def _finished(self, tasks: set["asyncio.Task[None]"], task: "asyncio.Task[None]") -> None:
        tasks.discard(task)
        self._call_next()
        if not task.cancelled() and task.exception() is not None:
            self.failure = self.failure or task.exception()
            self.results.put_nowait(None)


def _answered(image: Image, row: Row, answer: InferResult) -> Result:
    return Result(
        image.index,
        image.filename,
        image.width,
        image.height,
        row.predictions,
        row.scores,
        row.error or (None if row.decoded else UndecodableImage()),
        None if row.error else answer.model_version,
        answer.multi_label,
    )


def _failed(image: Image, error: GatewayError) -> Result:
    return Result(image.index, image.filename, image.width, image.height, error=error)


def _count(result: Result, model_name: str) -> None:
    outcome = "ok" if result.error is None else result.error.code
    # A name that a client made up must not become a label, so a model counts by name once it has answered.
    model, version = (model_name, result.model_version) if result.model_version else ("", "")
    metrics.IMAGES.labels(outcome, model, version).inc()
