"""TIFF 6.0 and BigTIFF, of which the first page counts."""

import struct
from collections.abc import Iterator
from itertools import zip_longest

from gateway.errors import InvalidImage, TruncatedImage, UnsupportedFormat
from gateway.ingest.formats.step_limit import Steps
from gateway.ingest.image_info import ImageFormat, ImageInfo, upright

Tags = dict[int, tuple[int, ...]]

SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_WIDTH, _HEIGHT, _BITS, _ORIENTATION, _SAMPLES = 256, 257, 258, 274, 277
_STRIP_OFFSETS, _STRIP_BYTES = 273, 279
_TILE_WIDTH, _TILE_HEIGHT, _TILE_OFFSETS, _TILE_BYTES = 322, 323, 324, 325
_PHOTOMETRIC, _EXTRA_SAMPLES, _SAMPLE_FORMAT = 262, 338, 339
_TAGS = frozenset(
    {
        _WIDTH, _HEIGHT, _BITS, _ORIENTATION, _SAMPLES, _STRIP_OFFSETS, _STRIP_BYTES, _TILE_WIDTH, _TILE_HEIGHT,
        _TILE_OFFSETS, _TILE_BYTES, _PHOTOMETRIC, _EXTRA_SAMPLES, _SAMPLE_FORMAT,
    }
)  # fmt: skip
_UNSIGNED_INTEGER = 1
_ASSOCIATED_ALPHA, _UNASSOCIATED_ALPHA = 1, 2
# White is zero, black is zero, RGB, palette, CMYK, YCbCr, CIELab.
_GRAYS, _LAB, _PHOTOMETRICS = (0, 1), 8, frozenset({0, 1, 2, 3, 5, 6, 8})
_SAFE_TILE_SIDE = 1_024
_MAX_ENTRIES = 20_000
_BIT_DEPTHS = frozenset({1, 2, 4, 8, 16})
# Unsigned integers: BYTE, SHORT, LONG and LONG8. libtiff takes any integer, and the first entry of a tag counts: one
# that is of another type here would be passed over for a second one that tells another size.
_TYPES = {1: "B", 3: "H", 4: "I", 16: "Q"}
_MAX_VALUES = 200_000


def read_tiff(data: bytes) -> ImageInfo:
    """Bilevel, gray, palette, RGB, YCbCr and CMYK pages of up to 16 bits, in strips or tiles."""
    pages = iter(_Directories(data))
    first = next(pages, None)
    if first is None:
        raise InvalidImage("The TIFF has no page.")
    info = _read_page(first)
    _check_extents(first, data)
    for page in pages:
        _check_extents(page, data)
    return info


def _read_page(tags: Tags) -> ImageInfo:
    if any(kind != _UNSIGNED_INTEGER for kind in tags.get(_SAMPLE_FORMAT, ())):
        raise UnsupportedFormat(
            "The TIFF holds signed or floating-point samples; only unsigned integers are supported."
        )
    bit_depth = max(tags.get(_BITS, (1,)))
    if bit_depth not in _BIT_DEPTHS:
        raise UnsupportedFormat(f"The TIFF has {bit_depth} bits per channel; only 1, 2, 4, 8 and 16 are supported.")
    photometric = _one(tags, _PHOTOMETRIC, 1)
    if photometric not in _PHOTOMETRICS:
        raise UnsupportedFormat("The TIFF's colours must be gray, palette, RGB, YCbCr, CMYK or CIELab.")
    alpha = _one(tags, _EXTRA_SAMPLES, 0)
    has_alpha = alpha in (_ASSOCIATED_ALPHA, _UNASSOCIATED_ALPHA)
    if not (tags.get(_TILE_OFFSETS) or tags.get(_STRIP_OFFSETS)):
        raise InvalidImage("The TIFF's first page has no picture.")
    width, height = _one(tags, _WIDTH, 0), _one(tags, _HEIGHT, 0)
    # The decoder sets aside memory for a whole tile, which may well be larger than a small picture, but not by far.
    if _one(tags, _TILE_WIDTH, 0) > max(width + 15, _SAFE_TILE_SIDE) or _one(tags, _TILE_HEIGHT, 0) > max(
        height + 15, _SAFE_TILE_SIDE
    ):
        raise InvalidImage("The TIFF's tiles are larger than its picture.")
    orientation = _one(tags, _ORIENTATION, 1)
    orientation = orientation if 1 <= orientation <= 8 else 1
    return ImageInfo(
        ImageFormat.TIFF,
        *upright(width, height, orientation),
        orientation,
        bit_depth=bit_depth,
        has_alpha=has_alpha,
        # Up to 8 bits, libtiff multiplies by itself.
        by_pillow=photometric == _LAB or (has_alpha and photometric in _GRAYS),
        premultiplied=has_alpha and (alpha == _ASSOCIATED_ALPHA or bit_depth <= 8),
    )


def _check_extents(tags: Tags, data: bytes) -> None:
    offsets = tags.get(_TILE_OFFSETS) or tags.get(_STRIP_OFFSETS, ())
    lengths = tags.get(_TILE_BYTES) or tags.get(_STRIP_BYTES, ())
    if any(offset + length > len(data) for offset, length in zip_longest(offsets, lengths, fillvalue=0)):
        raise TruncatedImage("The TIFF is cut off: a picture lies beyond the end of the file.")


def _one(tags: Tags, tag: int, default: int) -> int:
    return tags.get(tag, (default,))[0]


class _Directories:
    """The image file directories, one a page."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        big = data[2:4] in (b"+\0", b"\0+")
        order = "<" if data.startswith(b"II") else ">"
        self._order, self._head = order, 8 if big else 4
        self._offset = struct.Struct(f"{order}{'Q' if big else 'I'}")
        self._count = struct.Struct(f"{order}{'Q' if big else 'H'}")
        self._entry = struct.Struct(f"{order}HH{'Q8s' if big else 'I4s'}")
        self._values = Steps("TIFF", _MAX_VALUES)
        self._steps = Steps("TIFF", _MAX_ENTRIES)

    def __iter__(self) -> Iterator[Tags]:
        """The tags that matter here, page by page."""
        position, seen = self._head, {0}
        while True:
            (offset,) = self._unpack(self._offset, position)
            if offset in seen:  # a page that leads back to one before it ends the file, as it does for libtiff
                return
            seen.add(offset)
            (count,) = self._unpack(self._count, offset)
            start = offset + self._count.size
            position = start + count * self._entry.size
            if position > len(self._data):
                raise TruncatedImage("The TIFF is cut off: a directory lies beyond the end of the file.")
            self._steps.take(1 + count)
            yield self._tags(self._data[start:position])

    def _tags(self, entries: bytes) -> Tags:
        tags: Tags = {}
        for tag, kind, count, inline in self._entry.iter_unpack(entries):
            if tag not in _TAGS or tag in tags:
                continue
            if kind not in _TYPES or not count:
                raise InvalidImage("The TIFF has a field without a value or of the wrong type.")
            self._values.take(count)
            values = struct.Struct(f"{self._order}{count}{_TYPES[kind]}")
            if values.size <= len(inline):
                tags[tag] = values.unpack_from(inline)
            else:
                tags[tag] = self._unpack(values, *self._offset.unpack(inline))
        return tags

    def _unpack(self, form: struct.Struct, offset: int) -> tuple[int, ...]:
        if offset + form.size > len(self._data):
            raise TruncatedImage("The TIFF is cut off: a directory lies beyond the end of the file.")
        return form.unpack_from(self._data, offset)
