"""Decoding in the gateway: any taken image becomes an upright, opaque, 8-bit RGB image."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.decoder import pillow
from gateway.decoder.headers import read_header
from gateway.decoder.opencv import cv2
from gateway.decoder.resampling import resample
from gateway.errors import ImageError, TooCostly, UndecodableImage
from gateway.ingest.image_formats import Header, Size, reduction
from gateway.ingest.resizing import Resize, TensorInput

# Height × width × channels of 8 or 16 bits; OpenCV's own annotations are wider still.
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
_STRIP_PIXELS = 1_000_000


@dataclass(frozen=True, slots=True)
class Ppm:
    """A image in an uncompressed PPM (P6): `pixels` are uint8 [height, width, 3], RGB."""

    pixels: Pixels

    @property
    def header(self) -> bytes:
        """The header before the pixels."""
        height, width = self.pixels.shape[:2]
        return b"P6\n%d %d\n255\n" % (width, height)

    def to_bytes(self) -> bytes:
        """The file."""
        return b"".join((self.header, self.pixels.data))


def decode(data: Buffer, info: Header, size: Size) -> Ppm:
    """Decode an inspected image.

    The result is the first frame or page: upright, 8-bit RGB, transparent pixels on white, resized to `size`. Raises
    UndecodableImage, or TooCostly if memory does not suffice. Needs 3 to 11 bytes a pixel meanwhile. Call it in a
    decoder's process, which may be lost.
    """
    info = known(bytes(data), info)
    return finished(_stored(data, info, size), info, size)


def known(data: bytes, info: Header) -> Header:
    """All that the header says, where only its size came from the serving process."""
    if info.format.traits.passed_on:
        return info
    header = read_header(data, info.format)
    if (header.width, header.height) != (info.width, info.height):
        raise UndecodableImage(_DISAGREE)
    return header


def finished(stored: Pixels, info: Header, size: Size) -> Ppm:
    """Finish an image as it is stored, 8-bit RGB: rotate it upright and resize it to `size`.

    For a TensorInput it is not resized: `gateway.decoder.tensors` does that.
    """
    if isinstance(size, TensorInput):
        return Ppm(_upright(stored, info))
    if isinstance(size, Resize):
        return Ppm(resample(_upright(stored, info), size))
    return Ppm(_upright(_shrink(stored, info, size), info))


def _stored(data: Buffer, info: Header, size: Size) -> Pixels:
    """The image as stored, RGB of 8 bits: by OpenCV, or by Pillow where that cannot."""
    failure: ImageError | None = None
    if info.format.traits.passed_on:
        try:
            pixels = _read(data, info, size)
            return _on_white(pixels, info) if pixels.ndim == 3 and pixels.shape[2] == 4 else pixels
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
    """The image as stored: RGB of 8 bits, or BGRA of 8 or 16 bits where it may be transparent."""
    factor = reduction(info, size)
    if info.has_alpha:
        flags = cv2.IMREAD_UNCHANGED
    else:
        flags = _REDUCED.get(factor, 0) | cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        decoded = cv2.imdecode(np.frombuffer(data, dtype=np.uint8), flags)
    except cv2.error as exc:
        raise (TooCostly if exc.code == cv2.Error.STS_NO_MEM else UndecodableImage) from exc
    if decoded is None or decoded.dtype not in (np.uint8, np.uint16):
        raise UndecodableImage
    if decoded.shape[:2] != tuple(-(-side // factor) for side in _stored_size(info)):
        raise UndecodableImage(_DISAGREE)
    return _with_alpha(decoded, info) if info.has_alpha else decoded


def _stored_size(info: Header) -> tuple[int, int]:
    """Height and width as the decoder gives them."""
    return (info.width, info.height) if info.orientation >= 5 else (info.height, info.width)


def _with_alpha(decoded: Pixels, info: Header) -> Pixels:
    if decoded.ndim == 2:
        alpha = np.full_like(decoded, np.iinfo(decoded.dtype).max)
        if info.transparent_gray is not None:
            # OpenCV scales gray levels of fewer bits to 8 bits, and leaves 8 and 16 bits as they are.
            level = info.transparent_gray * (255 // (2**info.bit_depth - 1) if info.bit_depth < 8 else 1)
            alpha[decoded == level] = 0
        return cv2.merge((decoded, decoded, decoded, alpha))
    if decoded.shape[2] == 3:
        return cv2.cvtColor(decoded, cv2.COLOR_BGR2BGRA)
    return decoded


def _on_white(bgra: Pixels, info: Header) -> Pixels:
    height, width = bgra.shape[:2]
    rgb = np.empty((height, width, 3), dtype=np.uint8)
    rows = max(_STRIP_PIXELS // width, 1)
    for top in range(0, height, rows):
        strip = bgra[top : top + rows]
        if strip.dtype == np.uint16:
            strip = cv2.convertScaleAbs(strip, alpha=255 / (2**info.bit_depth - 1))
        opacity = cv2.cvtColor(cv2.extractChannel(strip, 3), cv2.COLOR_GRAY2RGB)
        colours = cv2.cvtColor(strip, cv2.COLOR_BGRA2RGB)
        rgb[top : top + rows] = cv2.add(cv2.multiply(colours, opacity, scale=1 / 255), cv2.bitwise_not(opacity))
    return rgb


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
