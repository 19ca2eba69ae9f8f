"""WebP (RFC 9649), of which the first frame is used unless frames are requested."""

import struct

from gateway.errors import InvalidImage, TruncatedImage
from gateway.ingest.formats.shared import Steps, exif_orientation, without_prefix, xmp_orientation
from gateway.ingest.image_formats import Header, ImageFormat, upright

_CHUNK = struct.Struct("<4sI")
_ALL_FLAGS, _ALPHA_FLAG, _EXIF_FLAG, _XMP_FLAG, _ANIMATION_FLAG = 0x3E, 0x10, 0x08, 0x04, 0x02
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
        return Header(ImageFormat.WEBP, width, height, has_alpha=has_alpha, isolated=True)
    if kind == b"VP8X" and length >= 10:
        return _read_extended(data, 20 + length + length % 2, end)
    raise InvalidImage("The WebP begins with an unknown chunk.")


def _read_extended(data: bytes, position: int, end: int) -> Header:
    flags, steps = data[20], Steps("WebP", _MAX_CHUNKS)
    if flags & ~_ALL_FLAGS:
        raise InvalidImage("The WebP's header has flags that do not exist.")
    size = 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    has_alpha, isolated, has_picture = bool(flags & _ALPHA_FLAG), bool(flags & _ANIMATION_FLAG), False
    exif = xmp = b""
    while position + 8 <= end and (not has_picture or flags & (_EXIF_FLAG | _XMP_FLAG)):
        steps.take()
        kind, length = _CHUNK.unpack_from(data, position)
        start, position = position + 8, position + 8 + length + length % 2
        if start + length > end:
            raise InvalidImage("The WebP has a chunk that is longer than the file.")
        if kind in (b"VP8 ", b"VP8L") and not has_picture:
            has_picture = True
            lossless = kind == b"VP8L"
            width, height, alpha = _lossless_header(data, start) if lossless else (*_lossy_size(data, start), False)
            if (width, height) != size:
                raise InvalidImage("The WebP's header and its picture disagree about its size.")
            has_alpha, isolated = has_alpha or alpha, isolated or lossless
        elif kind == b"ANMF":
            has_picture = isolated = True
        elif kind == b"EXIF" and not exif:
            exif = data[start : start + length]
        elif kind == b"XMP " and not xmp:
            xmp = data[start : start + length]
    if not has_picture:
        raise InvalidImage("The WebP has no picture.")
    by_exif = exif_orientation(without_prefix(exif))
    orientation = by_exif or xmp_orientation(xmp) or 1
    # OpenCV ignores XMP, and EXIF after such a prefix.
    isolated = isolated or (orientation != 1 and (not by_exif or without_prefix(exif) != exif))
    return Header(
        ImageFormat.WEBP,
        *upright(*size, orientation),
        orientation,
        has_alpha=has_alpha,
        isolated=isolated,
        animated=bool(flags & _ANIMATION_FLAG),
    )


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
