"""The steps of an image, from its upload to the queue of its request, in one list: `image_steps`."""

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.deadline import Deadline
from gateway.errors import (
    DamagedImage,
    DeadlineExceeded,
    GatewayError,
    ImageError,
    LoadFailed,
    ModelUnavailable,
    Overloaded,
    TritonUnreachable,
)
from gateway.inference.expansion import ImageSource, OpenedImage, Report
from gateway.inference.queues import QueuedImage
from gateway.inference.record import ImageRecord
from gateway.inference.request import Process, RunningRequest, within
from gateway.inference.result import Result
from gateway.ingest.decode_budget import Size, expected_seconds
from gateway.ingest.image_info import ImageInfo, Unopened
from gateway.ingest.inspection import DecodePolicy, bytes_needed, check_size, encoded, examine, needs_decoding
from gateway.ingest.upload import Upload
from gateway.limits.account import Account
from gateway.limits.admission import Permit
from gateway.limits.caller import ANYONE
from gateway.values.clients import client_of

if TYPE_CHECKING:
    from gateway.ingest.decoders.pool import Decoders

NOT_SERVED = (Overloaded, ModelUnavailable, LoadFailed, TritonUnreachable)
"""Errors that end a request whose first image has not begun: the whole request may be sent again."""

Step = Callable[["ImageTask"], Awaitable[None]]
"""Does one thing with an image. An ImageError, DeadlineExceeded or one of NOT_SERVED becomes the result of its file."""


def image_steps(before_header: Sequence[Step] = (), before_permit: Sequence[Step] = ()) -> tuple[Step, ...]:
    """The steps of an image, with those of plug-ins.

    Steps `before_header` wait without anything of the image being read; steps `before_permit` know its header, and
    images of other requests pass an image that waits there.
    """
    return (*before_header, read_header, *before_permit, send)


class ImageTask:
    """One upload on its way, and what its steps find out."""

    __slots__ = ("_has_images", "deadline", "file", "info", "record", "report", "request", "upload")

    info: ImageInfo
    """The header; set by `read_header`."""

    def __init__(self, request: RunningRequest, upload: Upload) -> None:
        self.request = request
        self.upload = upload
        self.deadline = Deadline.after(request.spec.timeout_seconds)
        self.file = Result(upload.index, upload.filename)
        """The result of the file so far: its name and, later, its size."""
        self.record = ImageRecord(upload.data) if request.keeps_records else None
        expansion = request.spec.expansion
        self.report: Report = request.report if expansion is None else expansion.single(request.report)
        self._has_images = False
        """Whether the first image of the upload, which is charged with it, has been asked for."""

    @property
    def policy(self) -> DecodePolicy:
        """Which images the gateway decodes itself."""
        return self.request.tools.policy

    @property
    def decoders(self) -> "Decoders":
        """The pool of decoder processes."""
        return self.request.tools.decoders

    @property
    def account(self) -> Account:
        """What the request's decoding is charged to."""
        return self.request.account

    @property
    def strict(self) -> bool:
        """Whether a damaged image is an error."""
        return self.request.spec.strict

    @property
    def begun(self) -> bool:
        """Whether an image of the request has had a permit."""
        return self.request.begun

    async def charge(self) -> None:
        """Charge one image to the API key; waits while its rate is used up. Raises RateLimited."""
        request = self.request
        most_seconds = self.deadline.left_seconds if request.begun else request.tools.admission.max_wait_seconds
        await request.spec.charges.caller.charge(most_seconds, request.stages)

    async def size(self, max_side: int | None = None) -> Size:
        """What a decoder makes of the image: the model's input if it takes tensors, or the size of its preprocessor.

        If that is not known, the shorter side has at most `max_side` pixels, or those of the settings.
        """
        tools, spec = self.request.tools, self.request.spec
        if (tensor := self.request.tensor_input) is not None:
            return tensor
        work = tools.backend.resize(spec.model_name, spec.model_version)
        resize = None
        with suppress(GatewayError):  # the call with the image reports the error
            resize = await (work if tools.backend.supports_cancellation else tools.uncancelled.run(work))
        return resize or min(max_side or tools.policy.max_side, tools.policy.max_side)

    async def add(self, images: ImageSource, nbytes: int, begin: Callable[[OpenedImage], Report]) -> bool:
        """Queue the next image of an open file; see ExpandedUpload."""
        request = self.request
        if self._has_images and request.spec.charges.caller.has_rate:
            with request.stages["prepare"]:
                await images.open()
                if not await images.find():
                    return False
            await self.charge()
        self._has_images = True
        while True:
            with request.stages["prepare"]:
                await images.open()
            permit = await request.permit(nbytes, self.deadline)
            if images.is_open:
                break
            permit.release()  # another file got the slot meanwhile: a permit must not wait for one
        try:
            with request.stages["prepare"]:
                frame = await images.next()
        except BaseException:
            permit.release()
            raise
        if frame is None:
            permit.release()
            return False
        request.account.add_image()
        permit.shrink(len(frame.pixels))
        await self.queue(frame.pixels, permit, begin(frame))
        return True

    async def queue(self, payload: bytes, permit: Permit, report: Report, decode_seconds: float = 0.0) -> None:
        """Queue an image that has its permit."""
        # A copy: the frames of a file share one record.
        record = None if self.record is None else replace(self.record)
        queue = self.request.queue
        await queue.batcher.add(
            QueuedImage(queue, self.file, payload, permit, self.deadline, report, decode_seconds, record)
        )


def processing(steps: Sequence[Step]) -> Process:
    """What takes an upload through the steps; an error of the file becomes its result."""

    async def process(request: RunningRequest, upload: Upload) -> None:
        image = ImageTask(request, upload)
        try:
            for step in steps:
                await step(image)
        except (ImageError, DeadlineExceeded, *NOT_SERVED) as error:
            if isinstance(error, NOT_SERVED) and not request.begun:
                raise
            image.report(replace(image.file, error=error), image.record)

    return process


async def charge(image: ImageTask) -> None:
    """Charge the image to the API key; the first one of a request is paid already."""
    charges = image.request.spec.charges
    if charges.paid:
        charges.paid = False
    elif charges.caller is not ANYONE:
        await image.charge()


async def load_model(image: ImageTask) -> None:
    """Wait until the request's model is loaded; the image has no permit yet, so other models' images pass it."""
    request = image.request
    loader = request.tools.backend.loader
    assert loader is not None
    with request.stages["wait"]:
        spec = request.spec
        await loader.loaded(spec.model_name, spec.model_version, image.deadline, client_of(spec.key, spec.address))


async def read_header(image: ImageTask) -> None:
    """Find the header of an upload and check its size; a decoder reads that of a file that is not passed on.

    The account is charged, and grows by the time that a file of its size and format needs.
    """
    request, upload, account = image.request, image.upload, image.request.account
    nbytes, policy = len(upload.data), request.tools.policy
    with request.stages["prepare"]:
        account.add_image(nbytes)
        account.check()
        began = time.thread_time()
        try:
            info = examine(upload, policy)
        finally:
            account.charge(time.thread_time() - began)
        opened = isinstance(info, ImageInfo)
        if isinstance(info, Unopened):
            if info.format.traits.slow:
                account.add_slow_codec(nbytes)
            info = await within(image.deadline, image.decoders.read_header(upload.data, info.format, account))
    image.info = info
    image.file.width, image.file.height = info.width, info.height
    if image.record is not None:
        image.record.info = info
    if not opened:  # `examine` has checked the others
        check_size(info, policy.limits)


async def send(image: ImageTask) -> None:
    """Get a permit for the image, and queue it as it is, or decoded; or do so for each image that is made of it."""
    request, info, upload = image.request, image.info, image.upload
    expansion = request.spec.expansion
    if expansion is not None and expansion.applies(info):
        image.report = request.report
        await expansion.run(image)
    elif needs_decoding(info, request.tools.policy) or request.tensor_input is not None:
        await _send_decoded(image)
    else:
        nbytes = len(upload.data)
        seconds = expected_seconds(info, nbytes)
        if not request.account.try_pay(seconds):
            with request.stages["wait"]:
                await within(image.deadline, request.account.pay(seconds))
        permit = await request.permit(nbytes, image.deadline)
        payload = encoded(upload, info) if info.rewritten else upload.data
        await image.queue(payload, permit, image.report, seconds)


async def _send_decoded(image: ImageTask) -> None:
    """Get a permit for an image that is decoded here; its decoding is a task of its own."""
    request = image.request
    seconds = expected_seconds(image.info, len(image.upload.data))
    with request.stages["wait"]:
        size = await image.size()
    permit = await request.permit(bytes_needed(image.upload, image.info, size), image.deadline, seconds)
    request.spawn(_decode, image, size, permit)


async def _decode(image: ImageTask, size: Size, permit: Permit) -> None:
    """Decode an image that has its permit, and queue its pixels."""
    request, upload = image.request, image.upload
    decoding = image.decoders.decode(encoded(upload, image.info), image.info, size, request.account)
    try:
        with request.stages["prepare"]:
            pixels, damaged = await within(image.deadline, decoding)
            image.file = replace(image.file, damaged=damaged)
            if damaged and image.strict:
                raise DamagedImage
    except (ImageError, DeadlineExceeded, Overloaded) as error:
        permit.release()
        image.report(replace(image.file, error=error), image.record)
    else:
        permit.shrink(len(pixels) + (0 if image.record is None else len(upload.data)))
        await image.queue(pixels, permit, image.report)
