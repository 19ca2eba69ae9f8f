"""All that Pillow reads: headers and pixels of what OpenCV cannot decode or shows wrong, and animations."""

import io
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import AvifImagePlugin, ExifTags, Image, ImageCms, PngImagePlugin

from gateway.decoder.opencv import on_white
from gateway.errors import ImageError, TruncatedImage, UndecodableImage, UnsupportedFormat
from gateway.ingest.formats import png
from gateway.ingest.image_formats import Header, ImageFormat, upright

# One thread: the images of several decoders share the cores already.
AvifImagePlugin.DEFAULT_MAX_THREADS = 1
if ImageFormat.HEIC.available:
    import pillow_heif

    pillow_heif.register_heif_opener(thumbnails=False, depth_images=False, aux_images=False, decode_threads=1)

# Loaded now, so that no image's budget pays for it.
_LOADED = (ImageCms, *(import_module(each.traits.plugin) for each in ImageFormat if each.available))
# Pillow's limit of pixels only warns. This one is OpenCV's, the second check behind the limits of a request.
Image.MAX_IMAGE_PIXELS = None
_MOST_PIXELS = int(os.environ.get("OPENCV_IO_MAX_IMAGE_PIXELS", 1_000_000_000))
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY
_CUT_OFF = re.compile("truncated|end of file", re.IGNORECASE)
_BITS, _PHOTOMETRIC, _PLANAR, _SAMPLE_FORMAT = 258, 262, 284, 339
_UNSIGNED_INTEGER, _WHITE_IS_0, _IN_PLANES = 1, 0, 2
_BIT_DEPTHS = frozenset({1, 2, 4, 8, 16})
_TURNED_BY_PILLOW = frozenset({ImageFormat.TIFF, ImageFormat.HEIC})


@contextmanager
def refusals(image_format: ImageFormat) -> Iterator[None]:
    """Raise what a plug-in raises as an ImageError, without Pillow's warnings."""
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except (MemoryError, ImageError):
        raise
    except Exception as exc:  # plug-ins raise many types for hostile bytes
        raise _refusal(image_format, exc) from exc


def read_header(data: bytes, image_format: ImageFormat) -> Header:
    """The header of the first frame or page, which is not decoded yet; raises ImageError."""
    with refusals(image_format):
        image: Any = opened(data, image_format, whole=True)
        if image_format is ImageFormat.TIFF:
            _check_tiff(image.tag_v2, image.mode)
        is_gif = image_format is ImageFormat.GIF
        orientation = 1 if image_format in _TURNED_BY_PILLOW else _orientation(image)
        return Header(
            image_format,
            *upright(image.width, image.height, orientation),
            orientation,
            bit_depth=16 if image.mode.startswith("I;16") else image.info.get("bit_depth", 8),
            has_alpha=is_gif or image.has_transparency_data,
            gateway_only=True,
            # To count the frames of a GIF takes long.
            animated=is_gif or (image_format is not ImageFormat.TIFF and getattr(image, "n_frames", 1) > 1),
        )


def _orientation(image: Image.Image) -> int:
    """EXIF's orientation or else XMP's; 1 if that is damaged, which browsers ignore.

    Pillow writes an AVIF's boxes irot and imir into EXIF.
    """
    try:
        found = Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1)  # a PNG's own method would decode the PNG
    except MemoryError:
        raise
    except Exception:  # Pillow raises many types for damaged EXIF
        return 1
    return found if found in range(1, 9) else 1


def read(data: bytes, info: Header) -> NDArray[np.uint8]:
    """The first frame or page of an inspected image, RGB of 8 bits [height, width, 3], on white where it is not opaque.

    As stored, but for TIFF and HEIC, which are upright. Raises TruncatedImage or UndecodableImage.
    """
    with refusals(info.format):
        image = opened(data, info.format)
        check_size(image, info)
        return rgb(image)


def opened(data: bytes, image_format: ImageFormat, *, whole: bool = False) -> Image.Image:
    """The file, its first frame not decoded yet, with `whole` a PNG's other frames too; raises the plug-in's errors."""
    if image_format is ImageFormat.BMP and int.from_bytes(data[10:14], "little") < 14 + min(data[14:15] or b"\0"):
        # The pixels would begin in the header, where Pillow reads them; browsers read them after the palette.
        data = data[:10] + bytes(4) + data[14:]
    if image_format is ImageFormat.PNG:
        data = png.for_decoders(data, whole=whole)
    # Image.open would hide the reason why a plug-in refuses a file.
    plugin, _ = Image.OPEN[image_format.traits.pillow]
    image = plugin(io.BytesIO(data), "")
    if image_format is ImageFormat.PNG and image.mode in ("1", "L") and "transparency" in image.info:
        # A level in the file's bits, which Pillow compares with levels of 8 bits.
        image.info["transparency"] *= 255 // (2 ** data[24] - 1)
    return image


def _refusal(image_format: ImageFormat, cause: Exception) -> ImageError:
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
        if "transparency" in image.info:
            gray[levels == image.info["transparency"]] = 255
        return np.repeat(gray[..., None], 3, axis=2)
    if not image.has_transparency_data:
        return np.array(image.convert("RGB"))

    def rows(top: int, bottom: int) -> NDArray[Any]:
        return np.asarray(image.crop((0, top, image.width, bottom)).convert("RGBA"))

    return on_white(image.height, image.width, rows)


def _check_tiff(tags: Any, mode: str) -> None:  # noqa: ANN401  # Pillow's tags of a page
    """Refuse the pages that Pillow opens and shows wrong."""
    if any(kind != _UNSIGNED_INTEGER for kind in _values(tags, _SAMPLE_FORMAT)):
        raise UnsupportedFormat(
            "The TIFF holds signed or floating-point samples; only unsigned integers are supported."
        )
    bit_depth = max(_values(tags, _BITS), default=1)
    if bit_depth not in _BIT_DEPTHS:
        raise UnsupportedFormat(f"The TIFF has {bit_depth} bits per channel; only 1, 2, 4, 8 and 16 are supported.")
    if tags.get(_PLANAR, 1) == _IN_PLANES and (bit_depth > 8 or mode in ("LA", "PA")):
        raise UnsupportedFormat("The TIFF has planes of 16 bits, or alpha of gray in a plane: interleave its samples.")
    if bit_depth > 8 and tags.get(_PHOTOMETRIC, 1) == _WHITE_IS_0:
        raise UnsupportedFormat("The TIFF has 16 bits and white as 0; black must be 0.")


def _values(tags: Any, tag: int) -> tuple[Any, ...]:  # noqa: ANN401  # as above
    value = tags.get(tag, ())
    return value if isinstance(value, tuple) else (value,)
