"""TIFF 6.0 and BigTIFF, of which the first page counts."""

import struct
from dataclasses import dataclass

from gateway.errors import InvalidImage, TruncatedImage, UnsupportedFormat
from gateway.ingest.image_info import ImageFormat, ImageInfo, upright

SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_WIDTH, _HEIGHT, _BITS, _ORIENTATION, _SAMPLES = 256, 257, 258, 274, 277
_STRIP_OFFSETS, _STRIP_BYTES, _TILE_OFFSETS, _TILE_BYTES = 273, 279, 324, 325
_PHOTOMETRIC, _EXTRA_SAMPLES, _SAMPLE_FORMAT = 262, 338, 339
_TAGS = frozenset(
    {
        _WIDTH, _HEIGHT, _BITS, _ORIENTATION, _SAMPLES, _STRIP_OFFSETS, _STRIP_BYTES, _TILE_OFFSETS, _TILE_BYTES,
        _PHOTOMETRIC, _EXTRA_SAMPLES, _SAMPLE_FORMAT,
    }
)  # fmt: skip
_UNSIGNED_INTEGER = 1
_BIT_DEPTHS = frozenset({1, 2, 4, 8, 16})
# Unsigned integers: BYTE, SHORT, LONG and LONG8; the others hold nothing that is needed here.
_TYPES = {1: "B", 3: "H", 4: "I", 16: "Q"}
_MAX_VALUES = 1_000_000


def read_tiff(data: bytes) -> ImageInfo:
    """Bilevel, gray, palette, RGB, YCbCr and CMYK pages of up to 16 bits, in strips or tiles."""
    tags = _Directory(data).read()
    width, height = _one(tags, _WIDTH, 0), _one(tags, _HEIGHT, 0)
    if not width or not height:
        raise InvalidImage("The TIFF's first page has no width or no height.")
    if any(kind != _UNSIGNED_INTEGER for kind in tags.get(_SAMPLE_FORMAT, ())):
        raise UnsupportedFormat("The TIFF holds signed or floating-point samples; unsigned integers are taken.")
    bit_depth = max(tags.get(_BITS, (1,)))
    if bit_depth not in _BIT_DEPTHS:
        raise UnsupportedFormat(f"The TIFF has {bit_depth} bits per channel; 1, 2, 4, 8 and 16 are taken.")
    offsets = tags.get(_TILE_OFFSETS) or tags.get(_STRIP_OFFSETS, ())
    lengths = tags.get(_TILE_BYTES) or tags.get(_STRIP_BYTES, ())
    if not offsets or len(offsets) != len(lengths):
        raise InvalidImage("The TIFF's first page has no picture.")
    if any(offset + length > len(data) for offset, length in zip(offsets, lengths, strict=True)):
        raise TruncatedImage("The TIFF is cut off: its picture lies beyond the end of the file.")
    orientation = _one(tags, _ORIENTATION, 1)
    return upright(
        ImageFormat.TIFF,
        width,
        height,
        orientation if 1 <= orientation <= 8 else 1,
        bit_depth=bit_depth,
        has_alpha=_EXTRA_SAMPLES in tags,
    )


def _one(tags: dict[int, tuple[int, ...]], tag: int, default: int) -> int:
    return tags.get(tag, (default,))[0]


@dataclass(frozen=True, slots=True)
class _Directory:
    """The first image file directory."""

    data: bytes

    def read(self) -> dict[int, tuple[int, ...]]:
        """The values of the tags that matter here."""
        order = "<" if self.data.startswith(b"II") else ">"
        big = self.data[2:4] in (b"+\0", b"\0+")
        offset_type, count_type, inline_bytes = ("Q", "Q", 8) if big else ("I", "H", 4)
        entry = struct.Struct(f"{order}HH{offset_type}{inline_bytes}s")
        (offset,) = self._unpack(f"{order}{offset_type}", 8 if big else 4)
        (count,) = self._unpack(f"{order}{count_type}", offset)
        start = offset + struct.calcsize(count_type)
        if count > _MAX_VALUES:
            raise InvalidImage("The TIFF's directory has too many entries.")
        if start + count * entry.size > len(self.data):
            raise TruncatedImage("The TIFF is cut off: its directory lies beyond the end of the file.")
        tags: dict[int, tuple[int, ...]] = {}
        for position in range(start, start + count * entry.size, entry.size):
            tag, kind, values, inline = entry.unpack_from(self.data, position)
            if tag not in _TAGS or tag in tags or kind not in _TYPES or not values:
                continue
            if values > _MAX_VALUES:
                raise InvalidImage("The TIFF's directory has a field of too many values.")
            form = f"{order}{values}{_TYPES[kind]}"
            if struct.calcsize(form) <= inline_bytes:
                tags[tag] = struct.unpack_from(form, inline)
            else:
                tags[tag] = self._unpack(form, struct.unpack(f"{order}{offset_type}", inline)[0])
        return tags

    def _unpack(self, form: str, offset: int) -> tuple[int, ...]:
        if offset + struct.calcsize(form) > len(self.data):
            raise TruncatedImage("The TIFF is cut off: its directory lies beyond the end of the file.")
        return struct.unpack_from(form, self.data, offset)
