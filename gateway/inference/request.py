"""One request on its way: from its uploads to its results."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Self, TypeVar

import anyio
import numpy as np
from numpy.typing import NDArray

from gateway import metrics
from gateway.deadline import Deadline
from gateway.errors import (
    DamagedImage,
    DeadlineExceeded,
    GatewayError,
    ImageError,
    LoadFailed,
    ModelUnavailable,
    Overloaded,
    RequestError,
    TooCostly,
    TritonUnreachable,
    UndecodableImage,
)
from gateway.inference.animation_result import AnimationResult, as_animation
from gateway.inference.backend import ModelLoader
from gateway.inference.batching import QueuedImage, RequestQueue, ResultCallback
from gateway.inference.explaining import MAX_SIDE, PREVIEW_MASKS, Explanation, ExplanationSpec, MaskScores
from gateway.inference.prediction_log import ImageRecord
from gateway.inference.request_spec import Result
from gateway.inference.scope import Scope
from gateway.ingest.decode_budget import Size, shrunk_bytes
from gateway.ingest.decoders.cost import expected_seconds
from gateway.ingest.decoders.pool import AnimationFrame, MaskedImage, OpenAnimation
from gateway.ingest.frames import Wanted
from gateway.ingest.image_info import ImageInfo, Unopened
from gateway.ingest.inspection import check_size
from gateway.ingest.media_types import Uploads
from gateway.ingest.prepare import all_frames, bytes_needed, encoded, examine, masked_here, needs_decoding
from gateway.ingest.upload import Upload
from gateway.limits.account import Account
from gateway.limits.admission import Permit, Permits
from gateway.tenants.tenant import Charges
from gateway.time_slices import TimeSlice

if TYPE_CHECKING:
    from gateway.inference.service import InferenceService

T = TypeVar("T")

MAX_UNREAD_PREDICTIONS = 10_000
"""Unread predictions above which a request stops reading uploads."""
NOT_SERVED = (Overloaded, ModelUnavailable, LoadFailed, TritonUnreachable)
"""Errors that end a request whose first image has not begun."""
DisconnectWatcher = Callable[[], Awaitable[None]]
"""Waits until the results are no longer needed, for example since the client has disconnected; then it raises."""


class ReadyResults:
    """A queue with backpressure: a client may keep sending without reading its results."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[Result | None, int]] = asyncio.Queue()
        """The results with their sizes in predictions."""
        self._predictions = 0
        self._taken = asyncio.Event()

    def put(self, result: Result) -> None:
        """Add a result; never blocks, so results of images in progress may exceed the limit."""
        predictions = result.extent
        self._predictions += predictions
        self._queue.put_nowait((result, predictions))

    def end(self) -> None:
        """Mark the end of the results."""
        self._queue.put_nowait((None, 0))

    async def take(self) -> Result | None:
        """The next result, or None at the end."""
        result, predictions = await self._queue.get()
        self._predictions -= predictions
        self._taken.set()
        return result

    async def fewer_than_too_many(self) -> None:
        """Wait while more than MAX_UNREAD_PREDICTIONS are in the queue."""
        while self._predictions > MAX_UNREAD_PREDICTIONS:
            self._taken.clear()
            await self._taken.wait()


class RunningRequest:
    """Reads and decodes the uploads of one request, and queues their images; iterates over the results.

    All its tasks run in `scope`, its images have their permits from `permits`, and wait in `queue`.
    """

    def __init__(
        self,
        service: "InferenceService",
        queue: RequestQueue,
        scope: Scope,
        permits: Permits,
        account: Account | None = None,
    ) -> None:
        self._service = service
        self._queue = queue
        self._spec = queue.spec
        self._scope = scope
        self._permits = permits
        self._stages = queue.spec.stats.stages
        self._charges = queue.spec.charges
        self._account = account or service.decoders.account()
        # Further images would only wait, with permits that images of other requests could use.
        self._most_permits = service.batches.max_calls * service.batches.max_images
        queue.on_error = self._fail
        self._open = self._frames = 0
        self._begun = self._read_all = False
        self._results = ReadyResults()
        self._failure: Exception | None = None

    def start(self, uploads: Uploads, leaving: DisconnectWatcher | None) -> None:
        """Start to read the uploads; if `leaving` raises, the request ends."""
        self._spawn(self._read, uploads)
        if leaving is not None:
            self._spawn(leaving)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Result:
        """The next result that is ready; after the last one, raises the error that has ended the request, if any."""
        result = await self._results.take()
        if result is None:
            try:
                raise self._failure or StopAsyncIteration
            finally:
                self._failure = None  # its traceback keeps the request
        for image in result.images:
            self._spec.stats.count(image.error, image.model_version)
            if self._charges is not None:
                self._charges.tenant.count(image.error)
            _count(image, self._spec.model_name)
        return result

    def _spawn(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        self._scope.start(self._guard(work, *arguments))

    async def _guard(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Do some of the request's work; an exception ends the request."""
        try:
            await work(*arguments)
        except Exception as failure:  # raised again by __anext__
            self._fail(failure)

    def _fail(self, failure: Exception) -> None:
        """End the request with an error, after the results that are ready at this moment."""
        self._failure = self._failure or failure
        asyncio.get_running_loop().call_soon(self._results.end)

    async def _read(self, uploads: Uploads) -> None:
        """Start each upload as soon as it has arrived; the next one is read once this one has its permit."""
        async with aclosing(uploads):
            while True:
                await self._results.fewer_than_too_many()
                with self._stages["read"]:
                    upload = await anext(uploads, None)
                if upload is None:
                    break
                self._open += 1
                time_slice = TimeSlice()
                await self._process(upload)
                await time_slice.pause_if_over()  # the header alone may take 20 ms
        self._read_all = True
        self._end_if_done()

    async def _process(self, upload: Upload) -> None:
        """Take one upload through the steps of an image; an error of the file becomes its result."""
        logged = self._service.log is not None and self._spec.explanation is None
        record = ImageRecord(upload.data) if logged else None
        file = Result(upload.index, upload.filename, record=record)
        report = self._report if self._spec.frames is None else as_animation(self._report)
        deadline = Deadline.after(self._spec.timeout_seconds)
        try:
            if self._charges is not None:
                await self._charge(self._charges, deadline)
            info = await self._inspect(upload, deadline)
            if record is not None:
                record.info = info
            file = Result(upload.index, upload.filename, info.width, info.height, record=record)
            check_size(info, self._service.policy.limits)
            if self._service.loader is not None:
                await self._load(self._service.loader, deadline)
            if self._spec.explanation is not None:
                await self._explain(upload, info, self._spec.explanation, file, deadline)
            elif self._spec.frames is not None and info.animated:
                await self._process_frames(upload, info, self._spec.frames, file, deadline)
            elif needs_decoding(info, self._service.policy):
                size, permit = await self._admit_to_decoder(upload, info, deadline)
                self._spawn(self._decode, upload, info, size, QueuedImage(file, b"", permit, deadline, report))
            else:
                seconds, permit = await self._admit(upload, info, deadline)
                payload = encoded(upload, info)
                await self._queue.add(QueuedImage(file, payload, permit, deadline, report, seconds))
        except (ImageError, DeadlineExceeded, *NOT_SERVED) as error:
            if isinstance(error, NOT_SERVED) and not self._begun:
                raise  # the whole request may be sent again
            report(replace(file, error=error))

    async def _charge(self, charges: Charges, deadline: Deadline) -> None:
        """Charge one image to the API key; waits while its rate is used up. Raises RateLimited."""
        with self._stages["wait"]:
            await charges.image(deadline.left_seconds if self._begun else self._service.admission.max_wait_seconds)

    async def _load(self, loader: ModelLoader, deadline: Deadline) -> None:
        """Wait until the request's model is loaded; the image has no permit yet, so other models' images pass it."""
        with self._stages["wait"]:
            await loader.loaded(self._spec.model_name, self._spec.model_version, deadline)

    async def _inspect(self, upload: Upload, deadline: Deadline) -> ImageInfo:
        """The header of an upload; a decoder reads that of a file that is not passed on.

        The account is charged, and grows by the time that a file of its size and format needs.
        """
        account, nbytes, policy = self._account, len(upload.data), self._service.policy
        with self._stages["prepare"]:
            account.add_image(nbytes)
            account.check()
            began = time.thread_time()
            try:
                info = examine(upload, policy, frames=self._spec.frames is not None)
            finally:
                account.charge(time.thread_time() - began)
            if info.format.traits.slow:
                account.add_slow_codec(nbytes)
            if isinstance(info, Unopened):
                opening = self._service.decoders.read_header(upload.data, info.format, account)
                info = await by(deadline, opening)
            return info

    async def _admit(self, upload: Upload, info: ImageInfo, deadline: Deadline) -> tuple[float, Permit]:
        """The permit of an image that Triton decodes, and the seconds that it will take there, which are paid."""
        expected = expected_seconds(info, len(upload.data))
        with self._stages["wait"]:
            if not self._account.try_pay(expected):
                await by(deadline, self._account.pay(expected))
            return expected, await self._permit(bytes_needed(upload, info, None), deadline)

    async def _admit_to_decoder(self, upload: Upload, info: ImageInfo, deadline: Deadline) -> tuple[Size, Permit]:
        """The permit of an image that is decoded here, and the size to which it is decoded."""
        expected = expected_seconds(info, len(upload.data))
        with self._stages["wait"]:
            size = await self._size()
            return size, await self._permit(bytes_needed(upload, info, size), deadline, expected)

    async def _decode(self, upload: Upload, info: ImageInfo, size: Size, image: QueuedImage) -> None:
        """Decode an image that has its permit, and queue its pixels."""
        decoding = self._service.decoders.decode(encoded(upload, info), info, size, self._account)
        try:
            with self._stages["prepare"]:
                image.payload, damaged = await by(image.deadline, decoding)
                image.file = replace(image.file, damaged=damaged)
                if damaged and self._spec.strict:
                    raise DamagedImage
        except (ImageError, DeadlineExceeded, Overloaded) as error:
            image.permit.release()
            image.answer(replace(image.file, error=error))
        else:
            held = 0 if image.file.record is None else len(upload.data)
            image.permit.shrink(len(image.payload) + held)
            await self._queue.add(image)

    async def _process_frames(
        self, upload: Upload, info: ImageInfo, wanted: Wanted, file: Result, deadline: Deadline
    ) -> None:
        """Take each wanted frame of an animation through the steps; the next upload is read after the last frame."""
        animation = AnimationResult(file, self._report)
        try:
            await by(deadline, self._read_frames(upload, info, wanted, animation, deadline))
        except (ImageError, DeadlineExceeded, Overloaded) as error:
            if isinstance(error, Overloaded) and not self._begun:
                raise
            animation.end(error)
        else:
            animation.end()

    async def _read_frames(
        self, upload: Upload, info: ImageInfo, wanted: Wanted, animation: AnimationResult, deadline: Deadline
    ) -> None:
        with self._stages["prepare"]:
            data = all_frames(upload, info, self._service.policy)
            size = await self._size()
        wanted = replace(wanted, most=wanted.most - self._frames)
        async with self._service.decoders.animation(data, info, size, self._account, wanted) as frames:
            before, charges = self._frames, None  # the first frame is paid with the file

            def begin(frame: AnimationFrame) -> ResultCallback:
                return animation.begin(frame.index, frame.seconds)

            while True:
                if charges is not None:
                    await self._charge(charges, deadline)
                if not await self._queue_frame(frames, shrunk_bytes(info, size), animation.file, deadline, begin):
                    return
                self._frames += 1
                charges = self._charges if self._frames > before + 1 else None

    async def _queue_frame(
        self,
        frames: OpenAnimation,
        nbytes: int,
        file: Result,
        deadline: Deadline,
        begin: Callable[[AnimationFrame], ResultCallback],
    ) -> bool:
        """Queue the next frame of an open file, of up to `nbytes`; False if there is none."""
        with self._stages["wait"]:
            permit = await self._permit(nbytes, deadline)
        try:
            with self._stages["prepare"]:
                frame = await frames.next()
        except BaseException:
            permit.release()
            raise
        if frame is None:
            permit.release()
            return False
        self._account.add_image()
        permit.shrink(len(frame.pixels))
        await self._queue.add(QueuedImage(file, frame.pixels, permit, deadline, begin(frame)))
        return True

    async def _explain(
        self, upload: Upload, info: ImageInfo, spec: ExplanationSpec, file: Result, deadline: Deadline
    ) -> None:
        """Classify masked copies of an image; the result is the heat map of a class, or the first error of a copy."""
        try:
            result = await by(deadline, self._explained(upload, info, spec, file, deadline))
        except RequestError:
            raise
        except GatewayError as error:
            if isinstance(error, NOT_SERVED) and not self._begun:
                raise
            result = replace(file, error=error)
        self._report(result)

    async def _explained(
        self, upload: Upload, info: ImageInfo, spec: ExplanationSpec, file: Result, deadline: Deadline
    ) -> Result:
        masking = spec.masking
        with self._stages["prepare"]:
            data = masked_here(upload, info, self._service.policy)
            size = await self._size(MAX_SIDE)
        nbytes = shrunk_bytes(info, size)
        if masking.total_bytes(info, size) > spec.max_bytes:
            raise TooCostly(
                f"The masked images would have {masking.total_bytes(info, size):,} bytes, and {spec.max_bytes:,} are "
                "allowed: ask for fewer masks or a smaller grid.",
                limit="max_masked_bytes",
                value=spec.max_bytes,
            )
        scores = MaskScores(spec)
        next_preview = PREVIEW_MASKS
        async with self._service.decoders.masked(data, info, size, self._account, masking) as image:
            if image.damaged and self._spec.strict:
                raise DamagedImage
            for number in range(masking.images):
                if number and self._charges is not None:  # the image itself is paid with the file
                    await self._charge(self._charges, deadline)
                if not await self._queue_frame(image, nbytes, file, deadline, lambda _: scores.begin()):
                    raise UndecodableImage  # the decoder has ended early
                # A model that fails, or a class that it does not have, costs one image.
                await scores.wait(most_missing=masking.images - 1)
                if spec.previews and len(first := scores.first()) > next_preview:
                    next_preview += PREVIEW_MASKS
                    spec.progress.preview = await _drawn(image, scores, first, closes=False)
            explanation = await _drawn(image, scores, await scores.wait(most_missing=0), closes=True)
        return replace(file, explanation=explanation, model_version=scores.model_version, damaged=image.damaged)

    async def _permit(self, nbytes: int, deadline: Deadline, decode_seconds: float = 0) -> Permit:
        """Wait until the request may have another image in flight, and then for the image's permit.

        Raises DeadlineExceeded, or Overloaded if too many images wait or the request's first one waits too long.
        """
        if (
            len(self._permits) < self._most_permits
            and (permit := self._permits.try_acquire(nbytes, decode_seconds)) is not None
        ):
            self._begun = True
            return permit
        left_seconds = deadline.left_seconds
        most_seconds = left_seconds if self._begun else min(left_seconds, self._service.admission.max_wait_seconds)
        with anyio.move_on_after(most_seconds):
            await self._permits.fewer_than(self._most_permits)
            permit = await self._permits.acquire(nbytes, decode_seconds, begun=self._begun)
            self._begun = True
            return permit
        if most_seconds < left_seconds:
            raise Overloaded(
                f"The request's first image could not be processed within {most_seconds:g} s; try again later.",
                limit="max_wait_seconds",
                value=most_seconds,
            )
        raise DeadlineExceeded

    async def _size(self, max_side: int | None = None) -> Size:
        """The size of an image that is decoded here: that of the model's preprocessor if it is known.

        If not, its shorter side has at most `max_side` pixels, or those of the settings.
        """
        backend, spec = self._service.backend, self._spec
        work = backend.resize(spec.model_name, spec.model_version)
        resize = None
        with suppress(GatewayError):  # the call with the image reports the error
            resize = await (work if backend.supports_cancellation else self._service.uncancelled.run(work))
        return resize or min(max_side or self._service.policy.max_side, self._service.policy.max_side)

    def _report(self, result: Result) -> None:
        _drop_tracebacks(result.error)
        self._open -= 1
        if self._service.log is not None and result.record is not None:
            self._service.log.offer(self._spec, result)
            result = replace(result, record=None)
        self._results.put(result)
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._read_all and self._open == 0:
            self._results.end()


async def by(deadline: Deadline, work: Awaitable[T]) -> T:
    """The result of `work`; at the deadline it is cancelled, and DeadlineExceeded is raised."""
    with anyio.move_on_after(deadline.left_seconds):
        return await work
    raise DeadlineExceeded


def _drop_tracebacks(error: BaseException | None) -> None:
    """Release the stack frames of an error and its causes: they may hold megabytes of the image."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _count(result: Result, model_name: str) -> None:
    outcome = "ok" if result.error is None else result.error.code
    # A name that a client made up must not become a label, so a model counts by name once it has answered.
    model, version = (model_name, result.model_version) if result.model_version else ("", "")
    metrics.series(metrics.IMAGES, outcome, model, version).inc()
    if result.damaged:
        metrics.DAMAGED_IMAGES.inc()
    if result.error is None and (score := result.top_score) is not None:
        metrics.series(metrics.TOP_SCORE, model, version).observe(score)


async def _drawn(image: MaskedImage, scores: MaskScores, values: NDArray[np.float32], *, closes: bool) -> Explanation:
    """The explanation by the scores of an image and of its first copies, fp32 [images]."""
    heat = await image.draw(values, closes=closes)
    assert scores.class_id is not None
    return Explanation(scores.class_id, float(values[0]), image.masking, len(values) - 1, heat)
