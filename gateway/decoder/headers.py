"""The headers of files that the serving process does not read: of TIFF, GIF, AVIF, HEIC and JPEG 2000."""

import io
import math
import warnings
from itertools import zip_longest
from typing import Any

from PIL import ExifTags
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from gateway.decoder import pillow
from gateway.errors import ImageError, InvalidImage, TruncatedImage, UnsupportedFormat
from gateway.ingest.image_formats import Header, ImageFormat, upright

_WIDTH, _HEIGHT, _BITS, _PHOTOMETRIC, _ORIENTATION, _EXTRA_SAMPLES, _SAMPLE_FORMAT = 256, 257, 258, 262, 274, 338, 339
_SAMPLES, _COMPRESSION, _PLANAR, _ROWS_PER_STRIP = 277, 259, 284, 278
_STRIP_OFFSETS, _STRIP_BYTES, _TILE_OFFSETS, _TILE_BYTES = 273, 279, 324, 325
_UNSIGNED_INTEGER = 1
_ASSOCIATED_ALPHA, _UNASSOCIATED_ALPHA = 1, 2
# White is zero, black is zero, RGB, palette, CMYK, YCbCr, CIELab.
_WHITE_IS_0, _BLACK_IS_0, _RGB, _PALETTE, _LAB = 0, 1, 2, 3, 8
_PHOTOMETRICS = frozenset({0, 1, 2, 3, 5, 6, 8})
_BIT_DEPTHS = frozenset({1, 2, 4, 8, 16})


def read_header(data: bytes, image_format: ImageFormat) -> Header:
    """The header of the first frame or page, which is not decoded yet; raises ImageError."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return _READERS.get(image_format, _read_by_pillow)(data, image_format)
    except (MemoryError, ImageError):
        raise
    except Exception as exc:  # libraries raise many types for hostile bytes
        raise pillow.damaged(image_format, exc) from exc


def _read_by_pillow(data: bytes, image_format: ImageFormat) -> Header:
    image = pillow.opened(data, image_format)
    orientation = 1
    if image_format is ImageFormat.AVIF:
        # The boxes irot and imir, which Pillow writes into EXIF, or XMP. Pillow itself turns HEIC.
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    return Header(
        image_format,
        *upright(image.width, image.height, orientation),
        orientation,
        bit_depth=16 if image.mode.startswith("I;16") else image.info.get("bit_depth", 8),
        has_alpha=image.has_transparency_data,
        by_pillow=True,
        animated=image_format is ImageFormat.AVIF and getattr(image, "n_frames", 1) > 1,
    )


def _read_gif(data: bytes, image_format: ImageFormat) -> Header:
    """The logical screen, or more where the first frame reaches beyond it."""
    # Some writers pad with zeros or end with a line break, and some leave the trailer out.
    if len(data) < 14 or not (data.rstrip(b"\0\r\n").endswith(b";") or pillow.has_whole_gif_frames(data)):
        raise TruncatedImage("The GIF is cut off: it has no trailer.")
    width, height = pillow.opened(data, image_format).size
    return Header(image_format, width, height, has_alpha=True, by_pillow=True, animated=True)


def _read_tiff(data: bytes, image_format: ImageFormat) -> Header:
    """Bilevel, gray, palette, RGB, YCbCr, CMYK and CIELab pages of up to 16 bits, in strips or tiles."""
    tags = _tiff_tags(data)
    if any(kind != _UNSIGNED_INTEGER for kind in _values(tags, _SAMPLE_FORMAT)):
        raise UnsupportedFormat(
            "The TIFF holds signed or floating-point samples; only unsigned integers are supported."
        )
    bit_depth = max(_values(tags, _BITS), default=1)
    if bit_depth not in _BIT_DEPTHS:
        raise UnsupportedFormat(f"The TIFF has {bit_depth} bits per channel; only 1, 2, 4, 8 and 16 are supported.")
    photometric = tags.get(_PHOTOMETRIC, 1)
    if photometric not in _PHOTOMETRICS:
        raise UnsupportedFormat("The TIFF's colours must be gray, palette, RGB, YCbCr, CMYK or CIELab.")
    # Writers leave the tag out, and mean alpha as Pillow does: libtiff ignores such a sample.
    unnamed = photometric == _RGB and tags.get(_SAMPLES, 1) == 4 and _EXTRA_SAMPLES not in tags
    alpha = _UNASSOCIATED_ALPHA if unnamed else next(iter(_values(tags, _EXTRA_SAMPLES)), 0)
    has_alpha = alpha in (_ASSOCIATED_ALPHA, _UNASSOCIATED_ALPHA)
    in_planes = has_alpha and tags.get(_PLANAR, 1) != 1
    one_sample = photometric in (_WHITE_IS_0, _BLACK_IS_0, _PALETTE)
    if has_alpha and one_sample and (photometric == _WHITE_IS_0 or (bit_depth, alpha, in_planes) != (8, 2, False)):
        raise UnsupportedFormat(
            "A gray or palette TIFF with alpha must have 8 bits, black as 0, unassociated alpha and no planes."
        )
    if in_planes and (unnamed or (bit_depth > 8 and tags.get(_COMPRESSION, 1) == 1)):
        raise UnsupportedFormat("The TIFF has alpha in a separate plane: save it with interleaved samples.")
    orientation = tags.get(_ORIENTATION, 1)
    orientation = orientation if orientation in range(1, 9) else 1
    return Header(
        image_format,
        *upright(int(tags[_WIDTH]), int(tags[_HEIGHT]), orientation),
        orientation,
        bit_depth=bit_depth,
        has_alpha=has_alpha,
        # Up to 8 bits, libtiff multiplies by itself. OpenCV mixes up planes of 16 bits.
        by_pillow=photometric == _LAB or (has_alpha and one_sample) or unnamed or (in_planes and bit_depth > 8),
        premultiplied=has_alpha and (alpha == _ASSOCIATED_ALPHA or bit_depth <= 8),
    )


def _tiff_tags(data: bytes) -> ImageFileDirectory_v2:
    """The tags of the first page, whose pixels are in the file."""
    # Pillow looks for the 43 of BigTIFF in little-endian order only.
    big = 43 in data[2:4]
    start = b"II+\0" + data[4:16] if big else b"II*\0" + data[4:8]
    tags = ImageFileDirectory_v2(start, prefix=data[:2])
    count_bytes, entry_bytes = (8, 20) if big else (2, 12)
    count = int.from_bytes(data[tags.next : tags.next + count_bytes], "little" if data.startswith(b"II") else "big")
    if tags.next + count_bytes + count * entry_bytes > len(data):
        raise TruncatedImage("The TIFF is cut off: a directory lies beyond the end of the file.")
    file = io.BytesIO(data)
    file.seek(tags.next)
    tags.load(file)
    offsets = _values(tags, _TILE_OFFSETS) or _values(tags, _STRIP_OFFSETS)
    lengths = _values(tags, _TILE_BYTES) or _values(tags, _STRIP_BYTES)
    if not offsets or not tags.get(_WIDTH) or not tags.get(_HEIGHT):
        raise InvalidImage("The TIFF's first page has no size or no pixels.")
    if any(offset + length > len(data) for offset, length in zip_longest(offsets, lengths, fillvalue=0)) and (
        _end_of_plain_strips(tags) > len(data)
    ):
        raise TruncatedImage("The TIFF is cut off: its pixels lie beyond the end of the file.")
    return tags


def _end_of_plain_strips(tags: ImageFileDirectory_v2) -> float:
    """Where the pixels of uncompressed strips end, regardless of the announced length; infinity for other pixels."""
    if tags.get(_COMPRESSION, 1) != 1 or tags.get(_PLANAR, 1) != 1 or _values(tags, _TILE_OFFSETS):
        return math.inf
    height, offsets = int(tags[_HEIGHT]), _values(tags, _STRIP_OFFSETS)
    rows = min(int(tags.get(_ROWS_PER_STRIP, height)), height)
    if -(-height // rows) != len(offsets):
        return math.inf
    row_bytes = (int(tags[_WIDTH]) * sum(_values(tags, _BITS) or (1,)) + 7) // 8
    return float(max(at + row_bytes * min(rows, height - rows * strip) for strip, at in enumerate(offsets)))


def _values(tags: ImageFileDirectory_v2, tag: int) -> tuple[Any, ...]:
    value = tags.get(tag, ())
    return value if isinstance(value, tuple) else (value,)


_READERS = {ImageFormat.GIF: _read_gif, ImageFormat.TIFF: _read_tiff}
