"""PNG (W3C, third edition) and APNG, of which the default image counts."""

import struct
import zlib

from gateway.errors import InvalidImage, TruncatedImage
from gateway.ingest.formats.exif import exif_orientation
from gateway.ingest.image_info import ImageFormat, ImageInfo, upright

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_IEND = b"\0\0\0\0IEND\xaeB`\x82"
_GRAY, _RGB, _PALETTE, _GRAY_ALPHA, _RGB_ALPHA = 0, 2, 3, 4, 6
_BIT_DEPTHS = {
    _GRAY: (1, 2, 4, 8, 16),
    _RGB: (8, 16),
    _PALETTE: (1, 2, 4, 8),
    _GRAY_ALPHA: (8, 16),
    _RGB_ALPHA: (8, 16),
}
_CHUNK = struct.Struct(">I4s")
_HEADER = struct.Struct(">IIBBBBB")
_MAX_CHUNKS = 10_000


def read_png(data: bytes) -> ImageInfo:
    """PNG of every colour type and bit depth."""
    width, height, bit_depth, colour = _read_header(data)
    position, orientation = 33, 1
    has_alpha, transparent_gray = colour in (_GRAY_ALPHA, _RGB_ALPHA), None
    for _ in range(_MAX_CHUNKS):
        if position + 8 > len(data):
            raise TruncatedImage("The PNG is cut off before its picture.")
        length, kind = _CHUNK.unpack_from(data, position)
        if kind == b"IDAT":
            # What lies behind the last chunk does no harm; between here and there are pixels, which the decoder checks.
            if not data.endswith(_IEND) and data.rfind(_IEND, position) < 0:
                raise TruncatedImage("The PNG is cut off: it has no end chunk.")
            return upright(
                ImageFormat.PNG,
                width,
                height,
                orientation,
                bit_depth=bit_depth,
                has_alpha=has_alpha,
                transparent_gray=transparent_gray,
            )
        start, position = position + 8, position + 12 + length
        if position > len(data):
            raise TruncatedImage("The PNG is cut off before its picture.")
        if kind == b"tRNS":
            has_alpha = True
            if colour == _GRAY:
                transparent_gray = int.from_bytes(data[start : start + 2], "big")
        elif kind == b"eXIf":
            orientation = exif_orientation(data[start : start + length])
        elif kind == b"IEND":
            raise InvalidImage("The PNG has no picture.")
    raise InvalidImage("The PNG has too many chunks before its picture.")


def _read_header(data: bytes) -> tuple[int, int, int, int]:
    if len(data) < 33:
        raise TruncatedImage("The PNG is cut off in its header.")
    if _CHUNK.unpack_from(data, 8) != (13, b"IHDR") or zlib.crc32(data[12:29]) != int.from_bytes(data[29:33], "big"):
        raise InvalidImage("The PNG's header is damaged.")
    width, height, bit_depth, colour, compression, filtering, interlace = _HEADER.unpack_from(data, 16)
    if bit_depth not in _BIT_DEPTHS.get(colour, ()) or compression or filtering or interlace > 1:
        raise InvalidImage("The PNG's header has values that do not exist.")
    return width, height, bit_depth, colour
