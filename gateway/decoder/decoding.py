"""Decoding in the gateway: any taken image becomes an upright, opaque, 8-bit RGB image."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.decoder import pillow
from gateway.decoder.opencv import cv2, on_white
from gateway.decoder.resampling import resample
from gateway.errors import ImageError, TooCostly, UndecodableImage
from gateway.ingest.formats import png
from gateway.ingest.image_formats import Header, ImageFormat, Size, reduction
from gateway.ingest.resizing import Resize, TensorInput

# uint8 [height, width, 3]; OpenCV's own annotations are wider.
Pixels = NDArray[Any]
Buffer = bytes | NDArray[np.uint8]

# OpenCV has names for a reduced scale in gray and in BGR only; with RGB's bit, gray's is one of RGB.
_REDUCED = {8: cv2.IMREAD_REDUCED_GRAYSCALE_8, 4: cv2.IMREAD_REDUCED_GRAYSCALE_4, 2: cv2.IMREAD_REDUCED_GRAYSCALE_2}
# EXIF's orientation is undone by a rotation, followed by a reflection.
_ROTATIONS = {3: cv2.ROTATE_180, 5: cv2.ROTATE_90_CLOCKWISE, 6: cv2.ROTATE_90_CLOCKWISE,
              7: cv2.ROTATE_90_CLOCKWISE, 8: cv2.ROTATE_90_COUNTERCLOCKWISE}  # fmt: skip
_LEFT_RIGHT, _TOP_BOTTOM = 1, 0
_FLIPS = {2: _LEFT_RIGHT, 4: _TOP_BOTTOM, 5: _LEFT_RIGHT, 7: _TOP_BOTTOM}
_DISAGREE = "The image cannot be decoded: its header and its pixels disagree about its size."


def ppm(pixels: Pixels) -> tuple[bytes, memoryview]:
    """The parts of an uncompressed PPM (P6): its header, and the pixels."""
    height, width, _ = pixels.shape
    return b"P6\n%d %d\n255\n" % (width, height), pixels.data.cast("B")


def decode(data: Buffer, info: Header, size: Size) -> Pixels:
    """Decode an inspected image.

    The result is the first frame or page: upright, 8-bit RGB, transparent pixels on white, resized to `size`. Raises
    UndecodableImage, or TooCostly if memory does not suffice. Needs 3 to 11 bytes a pixel meanwhile. Call it in a
    decoder's process, which may be lost.
    """
    return finished(_stored(data, info, size), info, size)


def finished(stored: Pixels, info: Header, size: Size) -> Pixels:
    """Finish an image as it is stored, 8-bit RGB: rotate it upright and resize it to `size`.

    For a TensorInput it is not resized: `gateway.decoder.tensors` does that.
    """
    if isinstance(size, TensorInput):
        return _upright(stored, info)
    if isinstance(size, Resize):
        return resample(_upright(stored, info), size)
    return _upright(_shrink(stored, info, size), info)


def _stored(data: Buffer, info: Header, size: Size) -> Pixels:
    """The image as stored, RGB of 8 bits: by OpenCV, or by Pillow where that cannot."""
    failure: ImageError | None = None
    # Transparency of a PNG has many forms, which Pillow knows.
    if info.format.traits.may_pass_on and not (info.has_alpha and info.format is ImageFormat.PNG):
        try:
            return _read(data, info, size)
        except UndecodableImage as error:
            failure = error
    try:
        pixels = pillow.read(bytes(data), info)
    except ImageError as error:
        raise failure or error from error
    if pixels.shape[:2] != _stored_size(info):
        raise UndecodableImage(_DISAGREE)
    return pixels


def _read(data: Buffer, info: Header, size: Size) -> Pixels:
    """The image as stored, by OpenCV; with alpha only WebP."""
    factor = reduction(info, size)
    flags = _REDUCED.get(factor, 0) | cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    if info.has_alpha:
        flags = cv2.IMREAD_UNCHANGED
    if info.format is ImageFormat.PNG:
        data = png.for_decoders(bytes(data))
    try:
        decoded = cv2.imdecode(np.frombuffer(data, dtype=np.uint8), flags)
    except cv2.error as exc:
        raise (TooCostly if exc.code == cv2.Error.STS_NO_MEM else UndecodableImage) from exc
    if decoded is None:
        raise UndecodableImage
    if decoded.shape[:2] != tuple(-(-side // factor) for side in _stored_size(info)):
        raise UndecodableImage(_DISAGREE)
    height, width, channels = decoded.shape
    if channels == 4:
        return on_white(height, width, lambda top, bottom: cv2.cvtColor(decoded[top:bottom], cv2.COLOR_BGRA2RGBA))
    return decoded if not info.has_alpha else cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB)


def _stored_size(info: Header) -> tuple[int, int]:
    """Height and width as the decoder gives them."""
    return (info.width, info.height) if info.orientation >= 5 else (info.height, info.width)


def _shrink(pixels: Pixels, info: Header, max_side: int) -> Pixels:
    # By the full size, so that a reduced scale does not round twice.
    height, width = _stored_size(info)
    scale = max_side / min(height, width)
    if scale >= 1:
        return pixels
    size = max(round(width * scale), 1), max(round(height * scale), 1)
    return cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)


def _upright(pixels: Pixels, info: Header) -> Pixels:
    if info.orientation in _ROTATIONS:
        pixels = cv2.rotate(pixels, _ROTATIONS[info.orientation])
    if info.orientation in _FLIPS:
        pixels = cv2.flip(pixels, _FLIPS[info.orientation])
    return np.ascontiguousarray(pixels)
