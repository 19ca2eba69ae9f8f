"""For a route of a plug-in that takes images: its body as decoded images. docs/guides/plugins.md has an example.

REQUEST_BODY and FAULTS are for the route's OpenAPI document. All limits of POST /predict apply:
sizes, upload times, rates of API keys, the processor time of a request, and the images and bytes in flight.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing, closing
from dataclasses import dataclass

import numpy as np
from fastapi import Request
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from gateway.api.parameters import open_uploads
from gateway.api.request_context import request_context
from gateway.api.route_table import traits
from gateway.api.schemas import FAULTS, REQUEST_BODY
from gateway.errors import ImageError
from gateway.inference.request import Image, ImageRequest, nothing
from gateway.inference.request_spec import RequestSpec
from gateway.predict import charge, decode, recognise, wait_for_permit

__all__ = ["FAULTS", "REQUEST_BODY", "DecodedImage", "decoded_images", "traits"]


class _NoParameters(BaseModel):
    model_config = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """One file of a request: its pixels, or its error."""

    index: int
    """Position of the file in the request, from 0."""
    filename: str
    pixels: NDArray[np.uint8] | None
    """uint8 [height, width, 3], RGB, upright."""
    error: ImageError | None = None


async def decoded_images(request: Request, *, max_side: int) -> AsyncGenerator[DecodedImage, None]:
    """Each image of a request as soon as it has arrived, shrunk until its shorter side has at most `max_side` pixels.

    It holds its place among the images in flight until the next one is requested. Close the generator, for example by
    `contextlib.aclosing`. Raises errors of the whole request, such as UnsupportedMediaType, DeadlineExceeded (an image
    took longer than `default_timeout_seconds`) and Overloaded.
    """
    context = request_context(request)
    _, _, uploads = await open_uploads(request, context, _NoParameters)
    service, caller, stats = context.service, context.caller, context.stats
    seconds = context.settings.default_timeout_seconds
    spec = RequestSpec("", "", None, seconds, context.request_id, stats=stats, caller=caller, paid=context.charged)
    account = service.decoders.account(client=caller)
    async with aclosing(uploads):
        async for upload in uploads:
            with closing(ImageRequest(service, spec, nothing, account)) as of_upload:
                image = Image(of_upload, upload)
                image.size = max_side
                try:
                    for step in (charge, recognise, wait_for_permit, decode):
                        await step(image)
                except ImageError as error:
                    stats.errors[error.code] = stats.errors.get(error.code, 0) + 1
                    yield DecodedImage(upload.index, upload.filename, None, error)
                else:
                    stats.images_ok += 1
                    yield DecodedImage(upload.index, upload.filename, _pixels(image.payload))


def _pixels(ppm: bytes) -> NDArray[np.uint8]:
    _, size, _, pixels = ppm.split(b"\n", 3)
    width, height = map(int, size.split())
    return np.frombuffer(pixels, np.uint8).reshape(height, width, 3)
