"""WebP (RFC 9649), of which the first frame is used unless frames are requested."""

import struct

from gateway.errors import InvalidImage, TruncatedImage
from gateway.ingest.formats.orientation import exif_orientation, xmp_orientation
from gateway.ingest.image_formats import Header, ImageFormat, upright

_CHUNK = struct.Struct("<4sI")
_ALPHA_FLAG, _EXIF_FLAG, _XMP_FLAG, _ANIMATION_FLAG = 0x10, 0x08, 0x04, 0x02
_MAX_CHUNKS = 10_000


def read(data: bytes) -> Header:
    """Lossy, lossless, extended and animated WebP."""
    end = 8 + int.from_bytes(data[4:8], "little")
    if end > len(data):
        raise TruncatedImage("The WebP is cut off: it is shorter than its header says.")
    kind, length = _CHUNK.unpack_from(data, 12)
    if 20 + length > end:
        raise InvalidImage("The WebP's first chunk is longer than the file.")
    if kind == b"VP8 ":
        return Header(ImageFormat.WEBP, *_lossy_size(data, 20))
    if kind == b"VP8L":
        width, height, has_alpha = _lossless_header(data, 20)
        # Its Huffman tables may need a hundred times the memory of its pixels.
        return Header(ImageFormat.WEBP, width, height, has_alpha=has_alpha, gateway_only=True)
    if kind != b"VP8X" or length < 10:
        raise InvalidImage("The WebP begins with an unknown chunk.")
    flags = data[20]
    width, height = 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    orientation = _orientation(data, flags, 20 + length + length % 2, end)
    return Header(
        ImageFormat.WEBP,
        *upright(width, height, orientation),
        orientation,
        has_alpha=bool(flags & _ALPHA_FLAG),
        gateway_only=True,  # whatever picture follows
        animated=bool(flags & _ANIMATION_FLAG),
    )


def _orientation(data: bytes, flags: int, position: int, end: int) -> int:
    """The orientation in the first chunk of EXIF, else of XMP; as in libwebp, only of those that the flags announce."""
    found = {kind: b"" for kind, flag in ((b"EXIF", _EXIF_FLAG), (b"XMP ", _XMP_FLAG)) if flags & flag}
    for _ in range(_MAX_CHUNKS):
        if position + 8 > end:
            return exif_orientation(found.get(b"EXIF", b"")) or xmp_orientation(found.get(b"XMP ", b"")) or 1
        kind, length = _CHUNK.unpack_from(data, position)
        start, position = position + 8, position + 8 + length + length % 2
        if start + length > end:
            raise InvalidImage("The WebP has a chunk that is longer than the file.")
        if found.get(kind) == b"":
            found[kind] = data[start : start + length]
    raise InvalidImage("The WebP has too many chunks.")


def _lossy_size(data: bytes, start: int) -> tuple[int, int]:
    if data[start] & 1 or data[start + 3 : start + 6] != b"\x9d\x01\x2a":
        raise InvalidImage("The WebP has no key frame.")
    width, height = struct.unpack_from("<HH", data, start + 6)
    return width & 0x3FFF, height & 0x3FFF


def _lossless_header(data: bytes, start: int) -> tuple[int, int, bool]:
    header = data[start : start + 5]
    if len(header) < 5 or header[0] != 0x2F:
        raise InvalidImage("The WebP's lossless header is damaged.")
    bits = int.from_bytes(header[1:], "little")
    return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF), bool(bits >> 28 & 1)
