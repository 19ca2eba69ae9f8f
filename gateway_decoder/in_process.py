"""The steps of an image in one process, for commands that read the user's own files: never for uploads."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gateway.ingest.image_info import ImageInfo, Unopened
from gateway.ingest.inspection import DecodePolicy, check_size, encoded, examine, inspect, needs_decoding
from gateway.ingest.resizing import Resize
from gateway.ingest.upload import Limits, Upload
from gateway_decoder.decoding import decode
from gateway_decoder.headers import read_header


@dataclass(frozen=True, slots=True)
class Image:
    """What the service would send to Triton, and the width and height of the upload in upright pixels."""

    payload: bytes = field(repr=False)
    width: int
    height: int


def prepare(upload: Upload, policy: DecodePolicy, resize: Resize | None = None) -> Image:
    """The image that the service would send to Triton, to a model with such a resize; raises ImageError."""
    info = _opened(upload.data, examine(upload, policy), policy.limits)
    payload = encoded(upload, info)
    if needs_decoding(info, policy):
        payload = decode(payload, info, resize or policy.max_side).to_bytes()
    return Image(payload, info.width, info.height)


def small_pixels(data: bytes, limits: Limits, side: int) -> tuple[ImageInfo, NDArray[np.uint8]]:
    """The header of a file, and its pixels uint8 [height, width, 3] with at most `side` of them on the shorter side.

    Raises ImageError.
    """
    info = inspect_whole(data, limits)
    return info, decode(encoded(Upload(0, "", data), info), info, side).pixels


def inspect_whole(data: bytes, limits: Limits) -> ImageInfo:
    """The header of any accepted file, held to the limits; raises ImageError."""
    return _opened(data, inspect(data, limits), limits)


def _opened(data: bytes, info: ImageInfo | Unopened, limits: Limits) -> ImageInfo:
    if isinstance(info, ImageInfo):
        return info
    info = read_header(data, info.format)
    check_size(info, limits)
    return info
