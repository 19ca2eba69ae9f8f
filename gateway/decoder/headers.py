"""The headers of files that the serving process does not read, by Pillow, which decodes them as well."""

import warnings
from typing import Any

from PIL import ExifTags

from gateway.decoder import pillow
from gateway.errors import ImageError, UnsupportedFormat
from gateway.ingest.image_formats import Header, ImageFormat, upright

_BITS, _PHOTOMETRIC, _PLANAR, _SAMPLE_FORMAT = 258, 262, 284, 339
_UNSIGNED_INTEGER, _WHITE_IS_0, _IN_PLANES = 1, 0, 2
_BIT_DEPTHS = frozenset({1, 2, 4, 8, 16})
_TURNED_BY_PILLOW = frozenset({ImageFormat.TIFF, ImageFormat.HEIC})


def read_header(data: bytes, image_format: ImageFormat) -> Header:
    """The header of the first frame or page, which is not decoded yet; raises ImageError."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return _read(data, image_format)
    except (MemoryError, ImageError):
        raise
    except Exception as exc:  # libraries raise many types for hostile bytes
        raise pillow.damaged(image_format, exc) from exc


def _read(data: bytes, image_format: ImageFormat) -> Header:
    image: Any = pillow.opened(data, image_format)
    if image_format is ImageFormat.TIFF:
        _check_tiff(image.tag_v2, image.mode)
    is_gif = image_format is ImageFormat.GIF
    # EXIF, or XMP; Pillow writes an AVIF's boxes irot and imir into EXIF.
    orientation = 1 if image_format in _TURNED_BY_PILLOW else image.getexif().get(ExifTags.Base.Orientation, 1)
    orientation = orientation if orientation in range(1, 9) else 1
    return Header(
        image_format,
        *upright(image.width, image.height, orientation),
        orientation,
        bit_depth=16 if image.mode.startswith("I;16") else image.info.get("bit_depth", 8),
        has_alpha=is_gif or image.has_transparency_data,
        # To count the frames of a GIF takes long.
        animated=is_gif or (image_format is not ImageFormat.TIFF and getattr(image, "n_frames", 1) > 1),
    )


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
