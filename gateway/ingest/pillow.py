"""The one place that loads Pillow, for the pictures that OpenCV cannot open or shows wrong."""

import io
import os
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageCms,
    Jpeg2KImagePlugin,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from gateway.errors import UndecodableImage
from gateway.ingest.formats import heic
from gateway.ingest.image_info import ImageFormat, ImageInfo

if heic.AVAILABLE:
    import pillow_heif

    # One thread: the pictures of several decoders share the cores already.
    pillow_heif.register_heif_opener(thumbnails=False, depth_images=False, aux_images=False, decode_threads=1)

# Loaded above, since loading them is nothing that a picture's budget should pay for.
_PLUGINS = (
    AvifImagePlugin, BmpImagePlugin, GifImagePlugin, ImageCms, Jpeg2KImagePlugin, JpegImagePlugin, PngImagePlugin,
    TiffImagePlugin, WebPImagePlugin,
)  # fmt: skip
_NAMES = {ImageFormat.HEIC: "HEIF", ImageFormat.JPEG_2000: "JPEG2000"}
"""Pillow's names of formats, where they are not ours."""
# It would warn of large pictures by its own measure; ours is OpenCV's, the second wall behind the limits of a request.
Image.MAX_IMAGE_PIXELS = None
_MOST_PIXELS = int(os.environ.get("OPENCV_IO_MAX_IMAGE_PIXELS", 1_000_000_000))


def read(data: bytes, info: ImageInfo) -> NDArray[np.uint8]:
    """The first frame or page of an inspected image, RGB of 8 bits [height, width, 3], on white where it is not opaque.

    As stored, but for TIFF and HEIC, which stand upright. Raises UndecodableImage.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            return rgb(opened(data, info))
    except (MemoryError, UndecodableImage):
        raise
    except Exception as exc:  # whatever a plugin makes of a stranger's bytes
        raise UndecodableImage from exc


def opened(data: bytes, info: ImageInfo) -> Image.Image:
    """The file, its first frame not decoded yet; raises UndecodableImage, and what a plugin raises."""
    picture = Image.open(io.BytesIO(data), formats=[_NAMES.get(info.format, info.format.value)])
    check_size(picture, info)
    return picture


def check_size(picture: Image.Image, info: ImageInfo) -> None:
    """Raise UndecodableImage for a size that was not inspected, before it is decoded."""
    if picture.width * picture.height > _MOST_PIXELS or picture.size not in (
        (info.width, info.height),
        (info.height, info.width),
    ):
        raise UndecodableImage("The image cannot be decoded: its header and its pixels disagree about its size.")


def rgb(picture: Image.Image) -> NDArray[Any]:
    """The frame that a file stands at, uint8 [height, width, 3], on white where it is not opaque."""
    picture.load()
    if picture.mode.startswith("I;16"):
        gray = (np.asarray(picture) / 257).round().astype(np.uint8)
        return np.repeat(gray[..., None], 3, axis=2)
    if picture.has_transparency_data:
        white = Image.new("RGBA", picture.size, (255, 255, 255, 255))
        picture = Image.alpha_composite(white, picture.convert("RGBA"))
    return np.array(picture.convert("RGB"))
