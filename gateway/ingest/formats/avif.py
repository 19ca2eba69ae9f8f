"""AVIF: one AV1 picture in the boxes of HEIF (ISO/IEC 14496-12 and 23008-12)."""

import struct
from collections.abc import Iterator

from gateway.errors import InvalidImage, TruncatedImage
from gateway.ingest.formats.av1 import frame_size
from gateway.ingest.formats.exif import exif_orientation, without_prefix, xmp_orientation
from gateway.ingest.formats.steps import Steps
from gateway.ingest.image_info import ImageFormat, ImageInfo, upright

_BRANDS = frozenset({b"avif", b"avis"})
_ALPHA_URNS = (b"urn:mpeg:mpegB:cicp:systems:auxiliary:alpha", b"urn:mpeg:hevc:2015:auxid:1")
_IN_FILE, _IN_METADATA = 0, 1
_MAX_HEADER_BYTES, _MAX_PIECES = 512, 8
_PIXELS_OF_SMALL_PARTS = 1 << 20

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
    steps = Steps("AVIF")
    for kind, start, end in _boxes(data, 0, len(data), steps):
        if kind == b"meta" and meta is None:
            meta = start + 4, end
    if meta is None:
        raise TruncatedImage("The AVIF is cut off: it has no metadata.")
    try:
        return _read_meta(data, *meta, steps)
    except (struct.error, IndexError) as exc:
        raise InvalidImage("The AVIF's metadata is damaged.") from exc


def _read_meta(data: bytes, start: int, end: int, steps: Steps) -> ImageInfo:
    boxes = {kind: (begin, stop) for kind, begin, stop in _boxes(data, start, end, steps)}
    if not {b"pitm", b"iloc", b"iprp"} <= boxes.keys():
        raise InvalidImage("The AVIF has no primary picture.")
    version_and_primary = data[slice(*boxes[b"pitm"])]
    primary = int.from_bytes(version_and_primary[4 : 8 if version_and_primary[0] else 6], "big")
    extents = _extents(data, *boxes[b"iloc"], boxes.get(b"idat", (0, 0))[0], steps)
    if any(offset + length > len(data) for pieces in extents.values() for offset, length in pieces):
        raise TruncatedImage("The AVIF is cut off: its picture lies beyond the end of the file.")
    properties: list[tuple[bytes, bytes]] = []
    associations: dict[int, list[int]] = {}
    for kind, begin, stop in _boxes(data, *boxes[b"iprp"], steps):
        if kind == b"ipco":
            properties = [(name, data[first:last]) for name, first, last in _boxes(data, begin, stop, steps)]
        elif kind == b"ipma":
            associations |= _associations(data[begin:stop], steps)
    items = {
        item: {properties[index - 1][0]: properties[index - 1][1] for index in indices if 0 < index <= len(properties)}
        for item, indices in associations.items()
    }
    own = items.get(primary, {})
    if b"ispe" not in own:
        raise InvalidImage("The AVIF's primary picture has no size.")
    width, height = struct.unpack_from(">II", own[b"ispe"], 4)
    _check_frames(data, items, extents, width * height)
    turns = own[b"irot"][0] & 3 if b"irot" in own else 0
    mirror = own[b"imir"][0] & 1 if b"imir" in own else None
    orientation = _ORIENTATIONS[turns][mirror]
    if orientation == 1 and b"iinf" in boxes:
        orientation = _orientation_by_xmp(data, _metadata_items(data, *boxes[b"iinf"], steps), extents)
    return ImageInfo(
        ImageFormat.AVIF,
        *upright(width, height, orientation),
        orientation,
        bit_depth=_bit_depth(own),
        has_alpha=any(name == b"auxC" and value[4:].startswith(_ALPHA_URNS) for name, value in properties),
    )


def _metadata_items(data: bytes, start: int, end: int, steps: Steps) -> dict[bytes, int]:
    """The items of EXIF and XMP, of each the first one (iinf, ISO/IEC 14496-12 section 8.11.6)."""
    found: dict[bytes, int] = {}
    for kind, begin, stop in _boxes(data, start + (8 if data[start] else 6), end, steps):
        version = data[begin]
        if kind != b"infe" or version < 2:
            continue
        wide = 4 if version > 2 else 2
        item, type_at = int.from_bytes(data[begin + 4 : begin + 4 + wide], "big"), begin + 6 + wide
        name = data[type_at : type_at + 4]
        is_xmp = name == b"mime" and data.find(b"\0application/rdf+xml\0", type_at + 4, stop) >= 0
        if is_xmp or name == b"Exif":
            found.setdefault(b"XMP" if is_xmp else b"Exif", item)
    return found


def _orientation_by_xmp(data: bytes, items: dict[bytes, int], extents: dict[int, list[tuple[int, int]]]) -> int:
    """What XMP says where EXIF says nothing; EXIF's own word does not count, since irot and imir have it."""

    def contents(name: bytes) -> bytes:
        pieces = extents.get(items.get(name, -1), [])
        return b"".join(data[offset : offset + length] for offset, length in pieces[:_MAX_PIECES])

    exif = contents(b"Exif")
    # Before the TIFF structure stands how far it is (ISO/IEC 23008-12, annex A).
    if exif_orientation(without_prefix(exif[4 + int.from_bytes(exif[:4], "big") :])) is not None:
        return 1
    return xmp_orientation(contents(b"XMP")) or 1


def _check_frames(
    data: bytes, items: dict[int, dict[bytes, bytes]], extents: dict[int, list[tuple[int, int]]], pixels: int
) -> None:
    """Hold each AV1 picture to the size that its item tells: decoders set memory aside for the picture's own."""
    total = 0
    for item, properties in items.items():
        if not {b"av1C", b"ispe"} <= properties.keys() or not extents.get(item):
            continue
        # Of a header in several pieces the first is enough, or it is none that an encoder writes.
        offset, length = extents[item][0]
        frame = frame_size(data[offset : offset + min(length or _MAX_HEADER_BYTES, _MAX_HEADER_BYTES)])
        if frame is None or frame != struct.unpack_from(">II", properties[b"ispe"], 4):
            raise InvalidImage("The AVIF's header and its picture disagree about its size.")
        total += frame[0] * frame[1]
    # The picture, its opacity, a thumbnail; tiles may reach beyond the edges.
    if total > 4 * pixels + _PIXELS_OF_SMALL_PARTS:
        raise InvalidImage("The AVIF's parts have more pixels than the picture.")


def _bit_depth(properties: dict[bytes, bytes]) -> int:
    """Out of the AV1 codec configuration: high_bitdepth and twelve_bit."""
    flags = properties.get(b"av1C", b"\0\0\0")[2]
    return 12 if flags & 0x20 else 10 if flags & 0x40 else 8


def _boxes(data: bytes, position: int, end: int, steps: Steps) -> Iterator[tuple[bytes, int, int]]:
    """Type, start and end of the contents of each box."""
    while position + 8 <= end:
        steps.take()
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


def _extents(data: bytes, start: int, end: int, idat: int, steps: Steps) -> dict[int, list[tuple[int, int]]]:
    """Offset in the file and length of each piece of each item (iloc); of pieces of other files nothing."""
    version, sizes, position = data[start], int.from_bytes(data[start + 4 : start + 6], "big"), start + 6
    offset_bytes, length_bytes, base_bytes = sizes >> 12, sizes >> 8 & 15, sizes >> 4 & 15
    index_bytes = sizes & 15 if version in (1, 2) else 0
    wide = 4 if version == 2 else 2
    found: dict[int, list[tuple[int, int]]] = {}

    def take(count: int) -> int:
        nonlocal position
        if position + count > end:
            raise InvalidImage("The AVIF's item locations are damaged.")
        position += count
        return int.from_bytes(data[position - count : position], "big")

    for _ in range(take(wide)):
        steps.take()
        item = take(wide)
        method = take(2) & 15 if version in (1, 2) else _IN_FILE
        take(2)
        base = take(base_bytes) + (idat if method == _IN_METADATA else 0)
        pieces = found.setdefault(item, [])
        for _ in range(take(2)):
            steps.take()
            take(index_bytes)
            offset, length = take(offset_bytes), take(length_bytes)
            if method in (_IN_FILE, _IN_METADATA):
                pieces.append((base + offset, length))
    return found


def _associations(ipma: bytes, steps: Steps) -> dict[int, list[int]]:
    """The indices from 1 of each item's properties."""
    item_form, index_bytes = (">IB" if ipma[0] else ">HB"), 2 if ipma[3] & 1 else 1
    mask = 0x7FFF if index_bytes == 2 else 0x7F
    (count,) = struct.unpack_from(">I", ipma, 4)
    position, found = 8, {}
    for _ in range(count):
        item, indices = struct.unpack_from(item_form, ipma, position)
        position += struct.calcsize(item_form)
        steps.take(1 + indices)
        raw = ipma[position : position + indices * index_bytes]
        position += indices * index_bytes
        found[item] = [
            int.from_bytes(raw[at : at + index_bytes], "big") & mask for at in range(0, len(raw), index_bytes)
        ]
    return found
