"""AVIF: one AV1 picture in the boxes of HEIF (ISO/IEC 14496-12 and 23008-12)."""

import struct
from collections.abc import Iterator

from gateway.errors import InvalidImage, TruncatedImage
from gateway.ingest.image_info import ImageFormat, ImageInfo, upright

_BRANDS = frozenset({b"avif", b"avis"})
_ALPHA_URNS = (b"urn:mpeg:mpegB:cicp:systems:auxiliary:alpha", b"urn:mpeg:hevc:2015:auxid:1")
_MAX_BOXES = 10_000
_MAX_ENTRIES = 100_000

# EXIF's orientation by quarter turns anti-clockwise (irot) and what is mirrored after them (imir): nothing, top and
# bottom (axis 0), left and right (axis 1).
_ORIENTATIONS = {
    0: {None: 1, 0: 4, 1: 2},
    1: {None: 8, 0: 5, 1: 7},
    2: {None: 3, 0: 2, 1: 4},
    3: {None: 6, 0: 7, 1: 5},
}


def brands(data: bytes) -> frozenset[bytes]:
    """The brands of an ISO base media file; none where it is no such file."""
    if data[4:8] != b"ftyp":
        return frozenset()
    end = min(int.from_bytes(data[:4], "big"), 1_024, len(data))
    return frozenset(data[position : position + 4] for position in (8, *range(16, end - 3, 4)))


def is_avif(data: bytes) -> bool:
    """Whether the bytes begin as AVIF does."""
    return not _BRANDS.isdisjoint(brands(data))


def read_avif(data: bytes) -> ImageInfo:
    """The primary picture, at 8, 10 or 12 bits, with or without an alpha plane."""
    meta: tuple[int, int] | None = None
    for kind, start, end in _boxes(data, 0, len(data)):
        if kind == b"meta" and meta is None:
            meta = start + 4, end
    if meta is None:
        raise TruncatedImage("The AVIF is cut off: it has no metadata.")
    try:
        return _read_meta(data, *meta)
    except (struct.error, IndexError) as exc:
        raise InvalidImage("The AVIF's metadata is damaged.") from exc


def _read_meta(data: bytes, start: int, end: int) -> ImageInfo:
    boxes = {kind: (begin, stop) for kind, begin, stop in _boxes(data, start, end)}
    if not {b"pitm", b"iloc", b"iprp"} <= boxes.keys():
        raise InvalidImage("The AVIF has no primary picture.")
    version_and_primary = data[slice(*boxes[b"pitm"])]
    primary = int.from_bytes(version_and_primary[4 : 8 if version_and_primary[0] else 6], "big")
    if any(stop > len(data) for stop in _extent_ends(data, *boxes[b"iloc"])):
        raise TruncatedImage("The AVIF is cut off: its picture lies beyond the end of the file.")
    properties: list[tuple[bytes, bytes]] = []
    associations: list[int] = []
    for kind, begin, stop in _boxes(data, *boxes[b"iprp"]):
        if kind == b"ipco":
            properties = [(name, data[first:last]) for name, first, last in _boxes(data, begin, stop)]
        elif kind == b"ipma":
            associations += _associated(data[begin:stop], primary)
    own = {properties[index - 1][0]: properties[index - 1][1] for index in associations if 0 < index <= len(properties)}
    if b"ispe" not in own:
        raise InvalidImage("The AVIF's primary picture has no size.")
    width, height = struct.unpack_from(">II", own[b"ispe"], 4)
    turns = own[b"irot"][0] & 3 if b"irot" in own else 0
    mirror = own[b"imir"][0] & 1 if b"imir" in own else None
    orientation = _ORIENTATIONS[turns][mirror]
    return ImageInfo(
        ImageFormat.AVIF,
        *upright(width, height, orientation),
        orientation,
        bit_depth=_bit_depth(own),
        has_alpha=any(name == b"auxC" and value[4:].startswith(_ALPHA_URNS) for name, value in properties),
    )


def _bit_depth(properties: dict[bytes, bytes]) -> int:
    """Out of the AV1 codec configuration: high_bitdepth and twelve_bit."""
    flags = properties.get(b"av1C", b"\0\0\0")[2]
    return 12 if flags & 0x20 else 10 if flags & 0x40 else 8


def _boxes(data: bytes, position: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Type, start and end of the contents of each box."""
    for _ in range(_MAX_BOXES):
        if position + 8 > end:
            return
        size, kind = struct.unpack_from(">I4s", data, position)
        start = position + 8
        if size == 1 and position + 16 <= end:
            (size,) = struct.unpack_from(">Q", data, start)
            start += 8
        elif size == 0:
            size = end - position
        if size < start - position:
            raise InvalidImage("The AVIF has a box of an impossible size.")
        position += size
        if position > end:
            raise TruncatedImage("The AVIF is cut off: a box reaches beyond the end of the file.")
        yield kind, start, position
    raise InvalidImage("The AVIF has too many boxes.")


def _extent_ends(data: bytes, start: int, end: int) -> Iterator[int]:
    """Where each piece of each item ends in the file (iloc)."""
    version, sizes, position = data[start], int.from_bytes(data[start + 4 : start + 6], "big"), start + 6
    offset_bytes, length_bytes, base_bytes = sizes >> 12, sizes >> 8 & 15, sizes >> 4 & 15
    index_bytes = sizes & 15 if version in (1, 2) else 0
    wide = 4 if version == 2 else 2
    left = _MAX_ENTRIES

    def take(count: int) -> int:
        nonlocal position
        if position + count > end:
            raise InvalidImage("The AVIF's item locations are damaged.")
        position += count
        return int.from_bytes(data[position - count : position], "big")

    for _ in range(take(wide)):
        take(wide)
        in_file = take(2) & 15 == 0 if version in (1, 2) else True
        take(2)
        base = take(base_bytes)
        for _ in range(take(2)):
            take(index_bytes)
            stop = base + take(offset_bytes) + take(length_bytes)
            left -= 1
            if left < 0:
                raise InvalidImage("The AVIF has too many items.")
            if in_file:
                yield stop


def _associated(ipma: bytes, item: int) -> list[int]:
    """The indices from 1 of an item's properties."""
    item_form, index_bytes = (">IB" if ipma[0] else ">HB"), 2 if ipma[3] & 1 else 1
    mask = 0x7FFF if index_bytes == 2 else 0x7F
    (count,) = struct.unpack_from(">I", ipma, 4)
    position = 8
    for _ in range(min(count, _MAX_ENTRIES)):
        number, indices = struct.unpack_from(item_form, ipma, position)
        position += struct.calcsize(item_form)
        if number == item:
            raw = ipma[position : position + indices * index_bytes]
            return [int.from_bytes(raw[at : at + index_bytes], "big") & mask for at in range(0, len(raw), index_bytes)]
        position += indices * index_bytes
    return []
