"""PNG (W3C, third edition) and APNG, of which the default image counts."""

import struct
import zlib

from gateway.errors import InvalidImage, TruncatedImage
from gateway.ingest.formats.exif import exif_orientation
from gateway.ingest.image_info import ImageFormat, ImageInfo, upright

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GRAY, _RGB, _PALETTE, _GRAY_ALPHA, _RGB_ALPHA = 0, 2, 3, 4, 6
_BIT_DEPTHS = {
    _GRAY: (1, 2, 4, 8, 16),
    _RGB: (8, 16),
    _PALETTE: (1, 2, 4, 8),
    _GRAY_ALPHA: (8, 16),
    _RGB_ALPHA: (8, 16),
}
_CHANNELS = {_GRAY: 1, _RGB: 3, _PALETTE: 1, _GRAY_ALPHA: 2, _RGB_ALPHA: 4}
_ANIMATION = frozenset({b"acTL", b"fcTL", b"fdAT"})
# Deflate never gets beyond it (RFC 1951: 258 bytes out of two bits).
_DEFLATE_RATIO = 1_032
_CHUNK = struct.Struct(">I4s")
_HEADER = struct.Struct(">IIBBBBB")
_MAX_CHUNKS, _LEAST_CHUNK_BYTES = 1_000, 512


def read_png(data: bytes) -> ImageInfo:
    """PNG of every colour type and bit depth."""
    width, height, bit_depth, colour = _read_header(data)
    row_bits = width * bit_depth * _CHANNELS[colour]
    if height * (row_bits // 8) > len(data) * _DEFLATE_RATIO:
        raise InvalidImage("The PNG's header promises more pixels than its bytes can hold.")
    position, orientation, has_picture, animated = 33, 1, False, False
    has_alpha, transparent_gray = colour in (_GRAY_ALPHA, _RGB_ALPHA), None
    for _ in range(_MAX_CHUNKS + len(data) // _LEAST_CHUNK_BYTES):
        if position + 8 > len(data):
            raise TruncatedImage("The PNG is cut off: it has no end chunk.")
        length, kind = _CHUNK.unpack_from(data, position)
        start, position = position + 8, position + 12 + length
        # To the very last one: a decoder may set memory aside for what a chunk says of its length.
        if position > len(data):
            raise TruncatedImage("The PNG is cut off in the middle of a chunk.")
        if kind == b"IDAT":
            has_picture = True
        elif kind == b"IEND":
            break
        elif kind in _ANIMATION:
            animated = True
        elif has_picture:
            continue
        elif kind == b"tRNS":
            has_alpha = True
            if colour == _GRAY:
                transparent_gray = int.from_bytes(data[start : start + 2], "big")
        elif kind == b"eXIf" and data.startswith((b"II", b"MM"), start) and _intact(data, start - 4, position):
            orientation = exif_orientation(data[start : start + length]) or 1
    else:
        raise InvalidImage("The PNG has too many chunks.")
    if not has_picture:
        raise InvalidImage("The PNG has no picture.")
    return ImageInfo(
        ImageFormat.PNG,
        *upright(width, height, orientation),
        orientation,
        bit_depth=bit_depth,
        has_alpha=has_alpha,
        transparent_gray=transparent_gray,
        animated=animated,
    )


def still(data: bytes) -> bytes:
    """An inspected PNG without its animation: the default image, which is what a reader of plain PNG shows."""
    kept, position = [SIGNATURE], len(SIGNATURE)
    while position < len(data):
        length, kind = _CHUNK.unpack_from(data, position)
        end = position + 12 + length
        if kind not in _ANIMATION:
            kept.append(data[position:end])
        if kind == b"IEND":
            break
        position = end
    return b"".join(kept)


def _intact(data: bytes, start: int, end: int) -> bool:
    """Whether a chunk, from its type on, has its checksum; decoders pass over an ancillary one that has not."""
    return zlib.crc32(data[start : end - 4]) == int.from_bytes(data[end - 4 : end], "big")


def _read_header(data: bytes) -> tuple[int, int, int, int]:
    if len(data) < 33:
        raise TruncatedImage("The PNG is cut off in its header.")
    if _CHUNK.unpack_from(data, 8) != (13, b"IHDR") or not _intact(data, 12, 33):
        raise InvalidImage("The PNG's header is damaged.")
    width, height, bit_depth, colour, compression, filtering, interlace = _HEADER.unpack_from(data, 16)
    if bit_depth not in _BIT_DEPTHS.get(colour, ()) or compression or filtering or interlace > 1:
        raise InvalidImage("The PNG's header has values that do not exist.")
    return width, height, bit_depth, colour
