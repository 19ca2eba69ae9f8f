"""Damage with knowledge of the formats: more scans, chunks, tags and boxes, and sizes that the images do not have."""

import random
import re
import struct
import zlib
from collections.abc import Callable

from tests.encoders import PNG_SIGNATURE, png_chunk

MOST_BYTES = 1 << 20
_INTEGER_TYPES = (1, 3, 4, 6, 8, 9, 13, 16, 17, 18)


def mutate_structure(rng: random.Random, data: bytes) -> bytes:
    """Damage the parts of a file once; returns the file unchanged if its format has no known parts."""
    for signature, damages in _BY_SIGNATURE:
        if re.match(signature, data, re.DOTALL):
            return rng.choice(damages)(rng, data)[:MOST_BYTES]
    return data


def _size(rng: random.Random) -> int:
    return rng.choice((1, 2, 64, 1_000, 4_000, 16_384, 65_535, rng.randrange(1, 65_536)))


def _jpeg_more_scans(rng: random.Random, data: bytes) -> bytes:
    places = [match.start() for match in re.finditer(rb"\xff[\xda\xc4\xdb\xdd]", data)]
    if not places:
        return data
    start = rng.choice(places)
    end = data.find(b"\xff", start + 14)
    piece = data[start : rng.choice((end, start + 2 + int.from_bytes(data[start + 2 : start + 4], "big")))]
    place = rng.choice((start, len(data) - 2))
    return data[:place] + piece * min(rng.choice((2, 30, 500, 5_000)), MOST_BYTES // (len(piece) + 1)) + data[place:]


def _jpeg_size(rng: random.Random, data: bytes) -> bytes:
    match = re.search(rb"\xff[\xc0-\xc2\xc9\xca]...", data, re.DOTALL)
    if match is None:
        return data
    place = match.end()
    changed = bytearray(data)
    if rng.random() < 0.7:
        struct.pack_into(">HH", changed, place, _size(rng), _size(rng))
    if rng.random() < 0.5:
        changed[place + 6] = rng.choice((0x11, 0x22, 0x41, 0x44, 0x14))
    if rng.random() < 0.3:
        changed[match.start() + 1] = rng.choice((0xC0, 0xC1, 0xC2, 0xC9, 0xCA))
    return bytes(changed)


def _png_chunks(data: bytes) -> list[bytes]:
    chunks, position = [], len(PNG_SIGNATURE)
    while position + 12 <= len(data):
        end = position + 12 + int.from_bytes(data[position : position + 4], "big")
        chunks.append(data[position:end])
        position = end
    return chunks


def _png_shuffle(rng: random.Random, data: bytes) -> bytes:
    chunks = _png_chunks(data)
    for _ in range(rng.randrange(1, 4)):
        chunk = rng.choice(chunks)
        chunks[rng.randrange(1, len(chunks)) : 0] = [chunk] * rng.choice((1, 1, 5, 300))
    return PNG_SIGNATURE + b"".join(chunks)


def _png_texts(rng: random.Random, data: bytes) -> bytes:
    kind, head = rng.choice(
        (
            (b"zTXt", b"%d\0\0"),
            (b"iTXt", b"%d\0\1\0\0\0"),
            (b"iCCP", b"%d\0\0"),
            (b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0"),
            (b"zTXt", b"Raw profile type exif\0\0"),
            (b"sPLT", b"%d\0\x08"),
            (b"eXIf", b"II*\0\x08\0\0\0"),
        )
    )
    body = zlib.compress(bytes(rng.choice((10, 10**5, 4 * 10**6))))
    count = min(rng.choice((1, 20, 400)), MOST_BYTES // (len(body) + 40))
    texts = b"".join(png_chunk(kind, (head % number if b"%d" in head else head) + body) for number in range(count))
    place = rng.choice((33, len(data) - 12))
    return data[:place] + texts + data[place:]


def _png_size(rng: random.Random, data: bytes) -> bytes:
    header = struct.pack(">II", _size(rng), _size(rng)) + data[24:29]
    return PNG_SIGNATURE + png_chunk(b"IHDR", header) + data[33:]


def _tiff_tags(rng: random.Random, data: bytes) -> bytes:
    order = "<" if data.startswith(b"II") else ">"
    if data[2:4] in (b"+\0", b"\0+"):
        return data
    (start,) = struct.unpack_from(f"{order}I", data, 4)
    if start + 2 > len(data):
        return data
    (count,) = struct.unpack_from(f"{order}H", data, start)
    entries = [data[start + 2 + 12 * number :][:12] for number in range(min(count, 200))]
    entries = [entry for entry in entries if len(entry) == 12]
    for _ in range(rng.randrange(1, 4)):
        tag = rng.choice((256, 257, 258, 259, 262, 274, 277, 278, 279, 284, 322, 323, 338, 339))
        entry = struct.pack(f"{order}HHII", tag, rng.choice(_INTEGER_TYPES), rng.choice((0, 1, 1, 1, 3)), _size(rng))
        entries[rng.randrange(len(entries) + 1) : 0] = [entry] * rng.choice((1, 1, 50))
    entries += rng.choices(entries, k=rng.choice((0, 0, 3, 2_000)))
    offset = rng.choice((0, len(data), start))
    directory = struct.pack(f"{order}H", len(entries)) + b"".join(entries) + struct.pack(f"{order}I", offset)
    return data[:4] + struct.pack(f"{order}I", len(data)) + data[8:] + directory


def _box_size(rng: random.Random, data: bytes) -> bytes:
    place = data.find(b"ispe")
    if place < 0:
        return data
    return data[: place + 8] + struct.pack(">II", _size(rng), _size(rng)) + data[place + 16 :]


def _box_lengths(rng: random.Random, data: bytes) -> bytes:
    names = [m.start() for m in re.finditer(rb"ipco|ipma|iloc|iinf|iref|infe|av1C|ispe|colr|pixi|meta|iprp", data)]
    if not names:
        return data
    place = rng.choice(names)
    changed = bytearray(data)
    if rng.random() < 0.5:
        struct.pack_into(">I", changed, place - 4, rng.choice((0, 1, 8, 9, 0xFFFF, 0x7FFFFFFF)))
    else:
        at = place + 4 + rng.randrange(24)
        changed[at : at + 2] = struct.pack(">H", rng.choice((0, 1, 2, 0xFF, 0x7FFF, 0xFFFF)))
    return bytes(changed)


def _riff_chunks(rng: random.Random, data: bytes) -> bytes:
    chunks, position = [], 12
    while position + 8 <= len(data):
        end = position + 8 + int.from_bytes(data[position + 4 : position + 8], "little")
        chunks.append(data[position : end + end % 2])
        position = end + end % 2
    if rng.random() < 0.3 and chunks and chunks[0].startswith(b"VP8X"):
        chunks[0] = chunks[0][:12] + (_size(rng) - 1).to_bytes(3, "little") * 2 + chunks[0][18:]
    for _ in range(rng.randrange(1, 4)):
        chunks[rng.randrange(len(chunks)) : 0] = [rng.choice(chunks)] * rng.choice((1, 1, 100))
    body = b"WEBP" + b"".join(chunks)[:MOST_BYTES]
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _gif_size(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    places = [6, *(match.start() + 5 for match in re.finditer(rb",", data) if match.start() + 9 < len(data))]
    struct.pack_into("<HH", changed, rng.choice(places[:3]), _size(rng), _size(rng))
    return bytes(changed)


def _bmp_size(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    struct.pack_into("<ii", changed, 18, _size(rng), rng.choice((1, -1)) * _size(rng))
    if rng.random() < 0.5:
        struct.pack_into("<HHI", changed, 26, rng.choice((0, 1, 3)), rng.choice((1, 4, 8, 24, 32)), rng.randrange(4))
    return bytes(changed)


Damage = Callable[[random.Random, bytes], bytes]
_BY_SIGNATURE: tuple[tuple[bytes, tuple[Damage, ...]], ...] = (
    (rb"\xff\xd8", (_jpeg_more_scans, _jpeg_more_scans, _jpeg_size)),
    (rb"\x89PNG", (_png_shuffle, _png_texts, _png_size)),
    (rb"RIFF", (_riff_chunks,)),
    (rb"GIF", (_gif_size,)),
    (rb"II|MM", (_tiff_tags,)),
    (rb"....ftyp", (_box_size, _box_lengths)),
    (rb"BM.{24}", (_bmp_size,)),
)
