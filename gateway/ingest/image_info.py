"""What is known of an image before it is decoded."""

from dataclasses import dataclass
from enum import Enum


class ImageFormat(str, Enum):
    """The formats that are taken, by their usual names."""

    JPEG = "JPEG"
    PNG = "PNG"
    WEBP = "WebP"
    BMP = "BMP"
    GIF = "GIF"
    TIFF = "TIFF"
    AVIF = "AVIF"


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """The header of the first frame or page of an image.

    `width` and `height` are the picture's as it is shown, upright: after `orientation` (EXIF's 1 to 8, 1 = as stored)
    was applied. `bit_depth` is the largest of the channels'. `has_alpha` says that pixels may be transparent, and
    `transparent_gray` is the one gray level that is, in a PNG that says it so.
    """

    format: ImageFormat
    width: int
    height: int
    orientation: int = 1
    bit_depth: int = 8
    has_alpha: bool = False
    transparent_gray: int | None = None


def upright(
    image_format: ImageFormat,
    stored_width: int,
    stored_height: int,
    orientation: int,
    *,
    bit_depth: int = 8,
    has_alpha: bool = False,
    transparent_gray: int | None = None,
) -> ImageInfo:
    """An ImageInfo out of the size as stored; orientations 5 to 8 turn the picture by 90 degrees."""
    width, height = (stored_height, stored_width) if orientation >= 5 else (stored_width, stored_height)
    return ImageInfo(image_format, width, height, orientation, bit_depth, has_alpha, transparent_gray)
