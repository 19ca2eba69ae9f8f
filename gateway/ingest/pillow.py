"""The one place that loads Pillow, for the pictures that OpenCV cannot open or shows wrong."""

import io
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
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from gateway.errors import UndecodableImage
from gateway.ingest.image_info import ImageInfo

# Loaded above, since loading them is nothing that a picture's budget should pay for.
_PLUGINS = (
    AvifImagePlugin, BmpImagePlugin, GifImagePlugin, ImageCms, JpegImagePlugin, PngImagePlugin, TiffImagePlugin,
    WebPImagePlugin,
)  # fmt: skip
# The limits of a request are held before it sees a byte, and the process has limits of its own.
Image.MAX_IMAGE_PIXELS = None


def read(data: bytes, info: ImageInfo) -> NDArray[np.uint8]:
    """The first frame or page of an inspected image, RGB of 8 bits [height, width, 3], on white where it is not opaque.

    As stored, but for a TIFF, which stands upright. Raises UndecodableImage.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            return _rgb(_opened(data, info))
    except (MemoryError, UndecodableImage):
        raise
    except Exception as exc:  # whatever a plugin makes of a stranger's bytes
        raise UndecodableImage from exc


def _opened(data: bytes, info: ImageInfo) -> Image.Image:
    picture = Image.open(io.BytesIO(data), formats=[info.format.value])
    # Before it is decoded: nothing but what was inspected is to be.
    if picture.size not in ((info.width, info.height), (info.height, info.width)):
        raise UndecodableImage("The image cannot be decoded: its decoders disagree about its size.")
    return picture


def _rgb(picture: Image.Image) -> NDArray[Any]:
    picture.load()
    if picture.mode.startswith("I;16"):
        gray = (np.asarray(picture) / 257).round().astype(np.uint8)
        return np.repeat(gray[..., None], 3, axis=2)
    if picture.has_transparency_data:
        white = Image.new("RGBA", picture.size, (255, 255, 255, 255))
        picture = Image.alpha_composite(white, picture.convert("RGBA"))
    return np.array(picture.convert("RGB"))
