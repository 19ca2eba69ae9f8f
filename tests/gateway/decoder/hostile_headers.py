"""Makes files whose headers cost more to read than they seem to, or contradict their images."""

import io
import struct
import zlib
from functools import cache

from PIL import Image


def _box(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I4s", len(data) + 8, kind) + data


def tiff_of_two_sizes(large: int, small: int) -> bytes:
    """A little-endian TIFF 6.0 whose width and length come first as SLONG, large, and then as LONG, small."""
    rows = zlib.compress(bytes(large * large), 9)
    sizes = [(tag, kind, 1, side) for tag in (256, 257) for kind, side in ((9, large), (4, small))]
    others = [(258, 3, 1, 8), (259, 3, 1, 8), (262, 3, 1, 1), (273, 4, 1, 8), (277, 3, 1, 1), (278, 4, 1, large)]
    entries = [*sizes, *others, (279, 4, 1, len(rows))]
    data = rows + bytes(len(rows) % 2)
    header = struct.pack("<2sHI", b"II", 42, 8 + len(data)) + data
    fields = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return header + struct.pack("<H", len(entries)) + fields + bytes(4)


@cache
def _avif(side: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (side, side), 128).save(file, "AVIF", speed=10, quality=10)
    return file.getvalue()


def avif_of_another_size(frame: int, declared: int) -> bytes:
    """An AVIF whose `ispe` says `declared` × `declared`, and whose AV1 frame has `frame` × `frame` pixels."""
    return _avif(frame).replace(
        b"ispe\0\0\0\0" + struct.pack(">II", frame, frame), b"ispe\0\0\0\0" + struct.pack(">II", declared, declared)
    )


def avif_of_many_items(count: int) -> bytes:
    """An AVIF whose `iloc` box (ISO/IEC 14496-12, 8.11.3) lists items without extents."""

    items = b"".join(struct.pack(">IHHH", number + 1, 0, 0, 0) for number in range(count))
    locations = _box(b"iloc", b"\x02\0\0\0\x44\x00" + struct.pack(">I", count) + items)
    handler = _box(b"hdlr", bytes(8) + b"pict" + bytes(13))
    head = _box(b"ftyp", b"avif\0\0\0\0avifmif1")
    return head + _box(b"meta", bytes(4) + handler + _box(b"pitm", b"\0\0\0\0\0\1") + locations)


@cache
def heic_of_another_size(coded: int, declared: int) -> bytes:
    """A HEIC whose `ispe` says `declared` × `declared`, and whose HEVC picture has `coded` × `coded` pixels."""
    import pillow_heif

    picture = pillow_heif.from_pillow(Image.new("L", (coded, coded), 128))
    file = io.BytesIO()
    picture.save(file, quality=10)
    return file.getvalue().replace(
        b"ispe\0\0\0\0" + struct.pack(">II", coded, coded), b"ispe\0\0\0\0" + struct.pack(">II", declared, declared)
    )


@cache
def heic_of_headers(items: int, headers: int) -> bytes:
    """A HEIC of `items` images that share `headers` headers of zeros: numbers of variable length without an end."""
    sets = b"".join(
        struct.pack(">H", 303 + number % 16) + b"\x42\x01\x01" + bytes(300 + number % 16) for number in range(16)
    )
    hvcc = [_box(b"hvcC", bytes(22) + b"\1\x21\0\x10" + sets + struct.pack(">H", number)) for number in range(headers)]
    ipco = _box(b"ipco", b"".join(hvcc) + _box(b"ispe", struct.pack(">III", 0, 64, 64)))
    pairs = (struct.pack(">HBHH", item + 1, 2, 1 + item % headers, headers + 1) for item in range(items))
    ipma = _box(b"ipma", b"\0\0\0\1" + struct.pack(">I", items) + b"".join(pairs))
    infe = _box(b"infe", struct.pack(">IHH4sx", 2 << 24, 1, 0, b"hvc1"))
    boxes = _box(b"pitm", struct.pack(">IH", 0, 1)) + _box(b"iloc", struct.pack(">IHH", 1 << 24, 0x4400, 0))
    boxes += _box(b"iinf", struct.pack(">IH", 0, 1) + infe) + _box(b"iprp", ipco + ipma)
    return _box(b"ftyp", b"heic\0\0\0\0mif1heic") + _box(b"meta", bytes(4) + boxes)


@cache
def jpeg2000_of_channels(nbytes: int) -> bytes:
    """A JPEG 2000 with a list of channels of `nbytes`, and no image."""
    return b"\0\0\0\x0cjP  \r\n\x87\n" + _box(b"jp2h", _box(b"cdef", bytes(nbytes)))
