"""HEIF, the house of AVIF and HEIC: pictures in boxes (ISO/IEC 14496-12, and 23008-12 for the items of pictures)."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gateway.errors import InvalidImage, TruncatedImage
from gateway.ingest.formats.step_limit import Steps

_ALPHA_URNS = (b"urn:mpeg:mpegB:cicp:systems:auxiliary:alpha", b"urn:mpeg:hevc:2015:auxid:1")
_IN_FILE, _IN_METADATA = 0, 1
_MAX_PIECES = 8
_MAX_CONTENTS_BYTES = 1 << 20
_PIXELS_OF_SMALL_PARTS = 1 << 20

# EXIF's orientation by quarter turns anti-clockwise (irot) and what is mirrored after them (imir): nothing, top and
# bottom (axis 0), left and right (axis 1).
_ORIENTATIONS = {
    0: {None: 1, 0: 4, 1: 2},
    1: {None: 8, 0: 5, 1: 7},
    2: {None: 3, 0: 2, 1: 4},
    3: {None: 6, 0: 7, 1: 5},
}
Properties = dict[bytes, bytes]


def brands(data: bytes) -> frozenset[bytes]:
    """The brands of an ISO base media file; none for any other file."""
    if data[4:8] != b"ftyp":
        return frozenset()
    end = min(int.from_bytes(data[:4], "big"), 1_024, len(data))
    return frozenset(data[position : position + 4] for position in (8, *range(16, end - 3, 4)))


@dataclass(frozen=True, slots=True)
class Heif:
    """The items of a file, by number, and what its header says of them.

    `properties` are each item's own, by kind of box; `kinds` the four letters of each item's type, `b"XMP "` for XMP;
    `parts` the items of which a derived one, such as a grid, is made.
    """

    name: str
    data: bytes = field(repr=False)
    primary: int
    properties: dict[int, Properties]
    extents: dict[int, list[tuple[int, int]]]
    kinds: dict[int, bytes]
    parts: dict[int, list[int]]
    has_alpha: bool
    steps: Steps = field(repr=False)
    """What is left of them for the pictures' own headers."""

    @property
    def own(self) -> Properties:
        """The properties of the primary picture."""
        return self.properties.get(self.primary, {})

    def size(self) -> tuple[int, int]:
        """Width and height of the primary picture as stored (ispe); raises InvalidImage where it has none."""
        if b"ispe" not in self.own:
            raise InvalidImage(f"The {self.name}'s primary picture has no size.")
        width, height = struct.unpack_from(">II", self.own[b"ispe"], 4)
        return width, height

    def orientation(self) -> int:
        """EXIF's number for the turn and the mirror of the primary picture (irot, imir)."""
        turns = self.own[b"irot"][0] & 3 if b"irot" in self.own else 0
        mirror = self.own[b"imir"][0] & 1 if b"imir" in self.own else None
        return _ORIENTATIONS[turns][mirror]

    def contents(self, item: int) -> bytes:
        """The bytes of a small item, such as its metadata; of a large one, or one in many pieces, the first of them."""
        contents = b""
        for offset, length in self.extents.get(item, [])[:_MAX_PIECES]:
            contents += self.data[offset : offset + min(length, _MAX_CONTENTS_BYTES - len(contents))]
        return contents

    def first_of(self, kind: bytes) -> int:
        """The first item of a type, -1 where there is none."""
        return next((item for item, its in self.kinds.items() if its == kind), -1)

    def beginning(self, item: int, nbytes: int) -> bytes:
        """The first bytes of an item's first piece."""
        offset, length = self.extents[item][0]
        return self.data[offset : offset + min(length or nbytes, nbytes)]

    def check_pixels(self, total: int) -> None:
        """Hold the pixels of all parts to the picture's: itself, its opacity, a thumbnail, tiles beyond its edges."""
        width, height = self.size()
        if total > 4 * width * height + _PIXELS_OF_SMALL_PARTS:
            raise InvalidImage(f"The {self.name}'s parts have more pixels than the picture.")


def is_opacity(properties: Properties) -> bool:
    """Whether an item is the alpha plane of another one (auxC)."""
    return properties.get(b"auxC", b"")[4:].startswith(_ALPHA_URNS)


@contextmanager
def damage_is_named(name: str) -> Iterator[None]:
    """Raise InvalidImage where the metadata ends too early, or a number in it leads to nothing."""
    try:
        yield
    except (struct.error, IndexError) as exc:
        raise InvalidImage(f"The {name}'s metadata is damaged.") from exc


def read_heif(data: bytes, name: str) -> Heif:
    """Read the header of a file that `name` calls by its format; raises InvalidImage or TruncatedImage."""
    boxes = _Boxes(data, name)
    meta: tuple[int, int] | None = None
    for kind, start, end in boxes.between(0, len(data)):
        if kind == b"meta" and meta is None:
            meta = start + 4, end
    if meta is None:
        raise TruncatedImage(f"The {name} is cut off: it has no metadata.")
    with damage_is_named(name):
        return _read_meta(boxes, *meta)


class _Boxes:
    """The boxes of a file, and the steps that are left to read them."""

    def __init__(self, data: bytes, name: str) -> None:
        self.data = data
        self.name = name
        self.steps = Steps(name)

    def between(self, position: int, end: int) -> Iterator[tuple[bytes, int, int]]:
        """Type, start and end of the contents of each box."""
        while position + 8 <= end:
            self.steps.take()
            size, kind = struct.unpack_from(">I4s", self.data, position)
            start = position + 8
            if size == 1 and position + 16 <= end:
                (size,) = struct.unpack_from(">Q", self.data, start)
                start += 8
            elif size == 0:
                size = end - position
            if size < start - position:
                raise InvalidImage(f"The {self.name} has a box of an impossible size.")
            position += size
            if position > end:
                raise TruncatedImage(f"The {self.name} is cut off: a box reaches beyond the end of the file.")
            yield kind, start, position


def _read_meta(file: _Boxes, start: int, end: int) -> Heif:
    data = file.data
    boxes = {kind: (begin, stop) for kind, begin, stop in file.between(start, end)}
    if not {b"pitm", b"iloc", b"iprp"} <= boxes.keys():
        raise InvalidImage(f"The {file.name} has no primary picture.")
    version_and_primary = data[slice(*boxes[b"pitm"])]
    extents = _extents(file, *boxes[b"iloc"], boxes.get(b"idat", (0, 0))[0])
    if any(offset + length > len(data) for pieces in extents.values() for offset, length in pieces):
        raise TruncatedImage(f"The {file.name} is cut off: its picture lies beyond the end of the file.")
    properties: list[tuple[bytes, bytes]] = []
    associations: dict[int, list[int]] = {}
    for kind, begin, stop in file.between(*boxes[b"iprp"]):
        if kind == b"ipco":
            properties = [(name, data[first:last]) for name, first, last in file.between(begin, stop)]
        elif kind == b"ipma":
            associations |= _associations(data[begin:stop], file.steps)
    return Heif(
        name=file.name,
        data=data,
        primary=int.from_bytes(version_and_primary[4 : 8 if version_and_primary[0] else 6], "big"),
        properties={
            item: {
                properties[index - 1][0]: properties[index - 1][1] for index in indices if 0 < index <= len(properties)
            }
            for item, indices in associations.items()
        },
        extents=extents,
        kinds=_kinds(file, *boxes[b"iinf"]) if b"iinf" in boxes else {},
        parts=_parts(file, *boxes[b"iref"]) if b"iref" in boxes else {},
        has_alpha=any(name == b"auxC" and value[4:].startswith(_ALPHA_URNS) for name, value in properties),
        steps=file.steps,
    )


def _kinds(file: _Boxes, start: int, end: int) -> dict[int, bytes]:
    """The type of each item (iinf, ISO/IEC 14496-12 section 8.11.6)."""
    data, found = file.data, {}
    for kind, begin, stop in file.between(start + (8 if data[start] else 6), end):
        version = data[begin]
        if kind != b"infe" or version < 2:
            continue
        wide = 4 if version > 2 else 2
        item, type_at = int.from_bytes(data[begin + 4 : begin + 4 + wide], "big"), begin + 6 + wide
        name = data[type_at : type_at + 4]
        is_xmp = name == b"mime" and data.find(b"\0application/rdf+xml\0", type_at + 4, stop) >= 0
        found[item] = b"XMP " if is_xmp else name
    return found


def _parts(file: _Boxes, start: int, end: int) -> dict[int, list[int]]:
    """The items of which each derived one is made, in their order (iref of kind dimg, section 8.11.12)."""
    data, found = file.data, {}
    wide = 4 if data[start] else 2
    for kind, begin, stop in file.between(start + 4, end):
        if kind != b"dimg":
            continue
        item = int.from_bytes(data[begin : begin + wide], "big")
        count = int.from_bytes(data[begin + wide : begin + wide + 2], "big")
        file.steps.take(count)
        numbers = data[begin + wide + 2 : min(begin + wide + 2 + count * wide, stop)]
        found[item] = [int.from_bytes(numbers[at : at + wide], "big") for at in range(0, len(numbers), wide)]
    return found


def _extents(file: _Boxes, start: int, end: int, idat: int) -> dict[int, list[tuple[int, int]]]:
    """Offset in the file and length of each piece of each item (iloc); of pieces of other files nothing."""
    data, steps = file.data, file.steps
    version, sizes, position = data[start], int.from_bytes(data[start + 4 : start + 6], "big"), start + 6
    offset_bytes, length_bytes, base_bytes = sizes >> 12, sizes >> 8 & 15, sizes >> 4 & 15
    index_bytes = sizes & 15 if version in (1, 2) else 0
    wide = 4 if version == 2 else 2
    found: dict[int, list[tuple[int, int]]] = {}

    def take(count: int) -> int:
        nonlocal position
        if position + count > end:
            raise InvalidImage(f"The {file.name}'s item locations are damaged.")
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
