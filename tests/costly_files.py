"""Makes image files that follow the letter of their formats and cost more than they seem to."""

import struct
import zlib
from functools import cache

from tests.encoders import png_chunk, png_header


def progressive_jpeg_of_many_scans(side: int, scans: int) -> bytes:
    """A gray progressive JPEG (ITU-T T.81, annex G) of `side` × `side`, in which each of many scans is 16 bytes.

    A scan sends the first AC coefficient of every block again: end-of-band runs of 27,306 blocks, in 15 bits each.
    """

    def segment(marker: int, data: bytes) -> bytes:
        return struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data

    blocks = (-(-side // 8)) ** 2
    runs = -(-blocks // 27_306)
    bits = "010101010101010" * runs
    bits += "1" * (-len(bits) % 8)
    scan = segment(0xDA, b"\x01\x01\x00\x01\x01\x00") + int(bits, 2).to_bytes(len(bits) // 8, "big")
    return b"".join(
        (
            b"\xff\xd8",
            segment(0xDB, b"\x00" + b"\x10" * 64),
            segment(0xC2, struct.pack(">BHHB", 8, side, side, 1) + b"\x01\x11\x00"),
            segment(0xC4, b"\x00\x01" + bytes(15) + b"\x00"),  # DC: one code, no difference
            segment(0xC4, b"\x10\x01" + bytes(15) + b"\xe0"),  # AC: one code, a run of 2^14 and 14 bits
            segment(0xDA, b"\x01\x01\x00\x00\x00\x00") + bytes(-(-blocks // 8)),
            scan * scans,
            b"\xff\xd9",
        )
    )


def png(width: int, height: int, *chunks: bytes, bits: int = 8, colour: int = 2) -> bytes:
    """A black PNG with additional chunks before its pixels."""
    channels = {0: 1, 2: 3}[colour]
    row = bytes(1 + -(-width * channels * bits // 8))
    packer = zlib.compressobj(9)
    pixels = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    body = b"".join(chunks) + png_chunk(b"IDAT", pixels)
    return png_header(width, height, bits, colour) + body + png_chunk(b"IEND", b"")


@cache
def black_png(side: int) -> bytes:
    """A black PNG of one bit a pixel: 6 kB for 49 megapixels."""
    return png(side, side, bits=1, colour=0)


@cache
def png_with_texts(count: int, nbytes: int = 8_000_000) -> bytes:
    """An 8 × 8 PNG with compressed texts of which each inflates to `nbytes`, the first as a colour profile."""
    packed = zlib.compress(bytes(nbytes), 9)
    texts = (
        png_chunk(b"zTXt", b"a%d\0\0" % number + packed)
        if number % 2
        else png_chunk(b"iTXt", b"a%d\0\1\0\0\0" % number + packed)
        for number in range(count - 1)
    )
    return png(8, 8, png_chunk(b"iCCP", b"a\0\0" + packed), *texts)
