"""For a route of a plug-in that takes images: its body as images with their pixels. docs/guides/plugins.md has one.

REQUEST_BODY and FAULTS are for the route's OpenAPI document. Bodies are those of POST /predict, with all its limits:
sizes, upload times, rates of API keys, the processor time of a request, and the images and bytes in flight.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np
from fastapi import Request
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from gateway.api.parameters import open_uploads
from gateway.api.request_context import RequestContext, request_context
from gateway.api.route_table import traits
from gateway.api.schemas import FAULTS, REQUEST_BODY
from gateway.errors import ImageError, Overloaded
from gateway.ingest.image_formats import Header, expected_seconds
from gateway.ingest.inspection import bytes_needed, check_size, encoded, examine
from gateway.ingest.upload import Upload
from gateway.limits.account import Account
from gateway.limits.admission import Permits

__all__ = ["FAULTS", "REQUEST_BODY", "DecodedImage", "decoded_images", "traits"]


class _NoParameters(BaseModel):
    model_config = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """One file of a request: its pixels, or what is wrong with it."""

    index: int
    """Position of the file in the request, from 0."""
    filename: str
    pixels: NDArray[np.uint8] | None
    """uint8 [height, width, 3], RGB, upright."""
    error: ImageError | None = None


async def decoded_images(request: Request, *, max_side: int) -> AsyncGenerator[DecodedImage, None]:
    """Each image of a request as soon as it has arrived, shrunk until its shorter side has at most `max_side` pixels.

    It holds its place among the images in flight until the next one is asked for. Close the generator, for example by
    `contextlib.aclosing`. Raises errors of the whole request, such as UnsupportedMediaType and Overloaded.
    """
    context = request_context(request)
    _, _, uploads = await open_uploads(request, context, _NoParameters)
    service, caller, paid, stats = context.service, context.caller, context.charged, context.stats
    account = service.tools.decoders.account(client=caller)
    with service.admission.permits(caller.share) as permits:
        async with aclosing(uploads):
            async for upload in uploads:
                if not paid:
                    await caller.charge(context.settings.max_wait_seconds, stats.stages)
                paid = False
                try:
                    pixels = await _pixels(context, account, permits, upload, max_side)
                except ImageError as error:
                    stats.errors[error.code] = stats.errors.get(error.code, 0) + 1
                    yield DecodedImage(upload.index, upload.filename, None, error)
                else:
                    stats.images_ok += 1
                    yield DecodedImage(upload.index, upload.filename, pixels)
                permits.close()


async def _pixels(
    context: RequestContext, account: Account, permits: Permits, upload: Upload, max_side: int
) -> NDArray[np.uint8]:
    tools = context.service.tools
    with context.stats.stages["prepare"]:
        account.add_image(len(upload.data))
        account.check()
        info = examine(upload, tools.policy)
        if not isinstance(info, Header):
            info = await tools.decoders.read_header(upload.data, info, account)
        check_size(info, tools.policy.limits)
    wait_seconds = context.settings.max_wait_seconds
    try:
        async with asyncio.timeout(wait_seconds):
            nbytes = bytes_needed(upload, info, max_side)
            permit = await permits.acquire(nbytes, expected_seconds(info, len(upload.data)))
    except TimeoutError:
        raise Overloaded(
            f"The image could not be decoded within {wait_seconds:g} s; try again later.",
            limit="max_wait_seconds",
            value=wait_seconds,
        ) from None
    with context.stats.stages["prepare"]:
        ppm, _ = await tools.decoders.decode(encoded(upload, info), info, max_side, account)
    permit.shrink(len(ppm))
    _, size, _, pixels = ppm.split(b"\n", 3)
    width, height = map(int, size.split())
    return np.frombuffer(pixels, np.uint8).reshape(height, width, 3)
