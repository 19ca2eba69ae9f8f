"""Decoding by Pillow: what is not JPEG, PNG or WebP, those that OpenCV cannot decode, and animations."""

import io
import os
import re
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

from gateway.errors import ImageError, TruncatedImage, UndecodableImage, UnsupportedFormat
from gateway.ingest.image_formats import Header, ImageFormat

# One thread: the images of several decoders share the cores already.
AvifImagePlugin.DEFAULT_MAX_THREADS = 1
if ImageFormat.HEIC.available:
    import pillow_heif

    pillow_heif.register_heif_opener(thumbnails=False, depth_images=False, aux_images=False, decode_threads=1)

# Loaded above, so that no image's budget pays for loading them.
_PLUGINS = (
    AvifImagePlugin, BmpImagePlugin, GifImagePlugin, ImageCms, Jpeg2KImagePlugin, JpegImagePlugin, PngImagePlugin,
    TiffImagePlugin, WebPImagePlugin,
)  # fmt: skip
# Pillow's own limit only warns; this one is OpenCV's, the second check behind the limits of a request.
Image.MAX_IMAGE_PIXELS = None
_MOST_PIXELS = int(os.environ.get("OPENCV_IO_MAX_IMAGE_PIXELS", 1_000_000_000))
_CUT_OFF = re.compile("truncated|end of file", re.IGNORECASE)
_STRIP_PIXELS = 1_000_000


def read(data: bytes, info: Header) -> NDArray[np.uint8]:
    """The first frame or page of an inspected image, RGB of 8 bits [height, width, 3], on white where it is not opaque.

    As stored, but for TIFF and HEIC, which are upright. Raises TruncatedImage or UndecodableImage.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            image = opened(data, info.format)
            check_size(image, info)
            return rgb(image)
    except (MemoryError, ImageError):
        raise
    except Exception as exc:  # plugins raise many types for hostile bytes
        raise damaged(info.format, exc) from exc


def opened(data: bytes, image_format: ImageFormat) -> Image.Image:
    """The file, its first frame not decoded yet; raises the plugin's errors."""
    if image_format is ImageFormat.BMP and int.from_bytes(data[10:14], "little") < 14 + min(data[14:15] or b"\0"):
        # The pixels would begin in the header, where Pillow reads them; browsers read them after the palette.
        data = data[:10] + bytes(4) + data[14:]
    # Image.open would hide the reason why a plugin refuses a file.
    plugin, _ = Image.OPEN[image_format.traits.pillow]
    return plugin(io.BytesIO(data), "")


def damaged(image_format: ImageFormat, cause: Exception) -> ImageError:
    """The error for a file that a library refuses."""
    if "unknown pixel mode" in str(cause):
        return UnsupportedFormat(
            f"The {image_format.value} has samples of a kind that is not supported: save it as RGB of 8 bits."
        )
    if _CUT_OFF.search(str(cause)):
        return TruncatedImage(f"The {image_format.value} is cut off.")
    return UndecodableImage(f"The {image_format.value} cannot be decoded: it is damaged or cut off.")


def check_size(image: Image.Image, info: Header) -> None:
    """Raise UndecodableImage for a size that was not inspected, before it is decoded."""
    if image.width * image.height > _MOST_PIXELS or image.size not in (
        (info.width, info.height),
        (info.height, info.width),
    ):
        raise UndecodableImage("The image cannot be decoded: its header and its pixels disagree about its size.")


def rgb(image: Image.Image) -> NDArray[Any]:
    """The current frame of a file, uint8 [height, width, 3], on white where it is not opaque."""
    image.load()
    if image.mode.startswith("I;16"):
        levels = np.asarray(image)
        gray = (levels // 257 + (levels % 257 > 128)).astype(np.uint8)
        return np.repeat(gray[..., None], 3, axis=2)
    if not image.has_transparency_data:
        return np.array(image.convert("RGB"))
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    rows = max(_STRIP_PIXELS // image.width, 1)  # so that three more images need not fit into the memory
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height))).convert("RGBA")
        white = Image.new("RGBA", strip.size, (255, 255, 255, 255))
        pixels[top : top + rows] = np.asarray(Image.alpha_composite(white, strip).convert("RGB"))
    return pixels
