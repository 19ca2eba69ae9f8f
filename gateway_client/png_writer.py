"""Encode pixels as PNG (W3C PNG, third edition), which is lossless and needs only the standard library."""

import struct
import zlib

_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
_FASTEST = 1


def encode(pixels: bytes, width: int, height: int, channels: int) -> bytes:
    """Encode pixels uint8 [height, width, channels], row by row; 1, 3 or 4 channels are gray, RGB or RGBA."""
    stride = width * channels
    rows = b"".join(b"\0" + pixels[start : start + stride] for start in range(0, len(pixels), stride))
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    data = zlib.compress(rows, _FASTEST)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
