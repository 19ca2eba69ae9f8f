"""PNG (W3C, third edition) and APNG, of which the default image is used unless frames are requested."""

import struct
import zlib
from collections.abc import Iterator

from gateway.errors import InvalidImage, TruncatedImage, UnsupportedFormat
from gateway.ingest.formats.orientation import exif_orientation, xmp_orientation
from gateway.ingest.image_formats import Header, ImageFormat, upright

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
# Chunks that a decoder needs, and others that are harmless. libpng inflates texts and profiles, each to megabytes, and
# keeps up to 1,000 of them; OpenCV 5.0.0 crashes on some damaged animations.
_PICTURE = frozenset({b"IDAT", b"IEND"})
_BEFORE_PICTURE = frozenset({b"IHDR", b"PLTE", b"tRNS"})
_ANIMATION = frozenset({b"acTL", b"fcTL", b"fdAT"})
_HARMLESS = frozenset({b"bKGD", b"cHRM", b"gAMA", b"pHYs", b"sBIT", b"sRGB", b"tIME"})
# The highest ratio of deflate (RFC 1951: 258 bytes from two bits).
_DEFLATE_RATIO = 1_032
_TEXTS = frozenset({b"tEXt", b"zTXt", b"iTXt"})
_XMP, _RAW_PROFILE = b"XML:com.adobe.xmp\0", b"Raw profile type exif\0"
_CHUNK = struct.Struct(">I4s")
_HEADER = struct.Struct(">IIBBBBB")
_MAX_CHUNKS, _LEAST_CHUNK_BYTES, _MOST_CHUNKS = 1_000, 256, 20_000


def read(data: bytes) -> Header | None:
    """PNG of every colour type and bit depth; None if its orientation may be where only Pillow finds it."""
    width, height, bit_depth, colour = _read_header(data)
    row_bits = width * bit_depth * _CHANNELS[colour]
    if height * (row_bits // 8) > len(data) * _DEFLATE_RATIO:
        raise InvalidImage("The PNG's header promises more pixels than its bytes can hold.")
    has_picture = rewritten = animated = elsewhere = False
    has_alpha = colour in (_GRAY_ALPHA, _RGB_ALPHA)
    orientation: int | None = None
    for kind, start, end in _chunks(data):
        if kind == b"IDAT":
            has_picture = True
        elif kind == b"tRNS" and not has_picture:
            has_alpha = True
            if (colour, bit_depth) == (_RGB, 16):
                raise UnsupportedFormat("The PNG has 16 bits and a transparent colour: save it with an alpha channel.")
        elif kind == b"eXIf" and _is_intact(data, start, end):
            # OpenCV uses the first one before the pixels if it has EXIF's byte order mark; Pillow uses the last one.
            first = orientation is None and not has_picture and data.startswith((b"II", b"MM"), start + 8)
            orientation = exif_orientation(data[start + 8 : end - 4]) if first else orientation
            elsewhere = elsewhere or not first
        elif kind in _TEXTS:
            rewritten = True
            elsewhere = elsewhere or _may_turn(data, kind, start, end)
        elif kind not in _PICTURE and (has_picture or kind not in _BEFORE_PICTURE):
            rewritten = rewritten or kind not in _HARMLESS
            animated = animated or (kind == b"acTL" and not has_picture)
    if not has_picture:
        raise InvalidImage("The PNG has no picture.")
    if elsewhere:
        return None
    orientation = orientation or 1
    return Header(
        ImageFormat.PNG,
        *upright(width, height, orientation),
        orientation,
        bit_depth=bit_depth,
        has_alpha=has_alpha,
        rewritten=rewritten,
        animated=animated,
    )


def for_decoders(data: bytes, *, whole: bool = False) -> bytes:
    """An inspected PNG without the chunks that no decoder needs, such as texts and profiles.

    Of an animation the default image remains, which readers of plain PNG show. With `whole`, for Pillow, all frames
    remain, and all chunks that may have an orientation, before the pixels: it looks for them without decoding these.
    """
    first, others, has_picture = [SIGNATURE], [], False
    for kind, start, end in _chunks(data):
        has_picture = has_picture or kind == b"IDAT"
        if kind in _PICTURE or (whole and kind in _ANIMATION):
            others.append(data[start:end])
        elif (
            (kind in _BEFORE_PICTURE and not has_picture)
            or (kind == b"eXIf" and (whole or not has_picture) and _is_intact(data, start, end))
            or (whole and _may_turn(data, kind, start, end) and _is_intact(data, start, end))
        ):
            first.append(data[start:end])
    return b"".join(first + others)


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """The type of each chunk, its start and its end, up to the end chunk."""
    end = len(SIGNATURE)
    for _ in range(min(_MAX_CHUNKS + len(data) // _LEAST_CHUNK_BYTES, _MOST_CHUNKS)):
        if end + 8 > len(data):
            raise TruncatedImage("The PNG is cut off: it has no end chunk.")
        length, kind = _CHUNK.unpack_from(data, end)
        start, end = end, end + 12 + length
        # The last chunk too: a decoder may allocate the memory that a chunk's length announces.
        if end > len(data):
            raise TruncatedImage("The PNG is cut off in the middle of a chunk.")
        yield kind, start, end
        if kind == b"IEND":
            return
    raise InvalidImage("The PNG has too many chunks.")


def _may_turn(data: bytes, kind: bytes, start: int, end: int) -> bool:
    """Whether a chunk is a text that may have an orientation other than 1: XMP, or ImageMagick's EXIF in digits."""
    if kind not in _TEXTS or not data.startswith(_XMP, start + 8):
        return kind in _TEXTS and data.startswith(_RAW_PROFILE, start + 8)
    text = start + 8 + len(_XMP)
    compressed = kind == b"zTXt" or (kind == b"iTXt" and data[text] == 1)
    return compressed or xmp_orientation(data, text, end - 4) not in (None, 1)


def _is_intact(data: bytes, start: int, end: int) -> bool:
    """Whether the checksum of a chunk is correct; decoders skip ancillary chunks with a wrong one."""
    return zlib.crc32(memoryview(data)[start + 4 : end - 4]) == int.from_bytes(data[end - 4 : end], "big")


def _read_header(data: bytes) -> tuple[int, int, int, int]:
    if len(data) < 33:
        raise TruncatedImage("The PNG is cut off in its header.")
    if data[12:16] == b"CgBI":
        raise UnsupportedFormat(
            "The file is a PNG in the form that Apple's developer tools write for apps (CgBI), which is not supported: "
            "convert it to a plain PNG, as `pngcrush -revert-iphone-optimizations` does."
        )
    if _CHUNK.unpack_from(data, 8) != (13, b"IHDR") or not _is_intact(data, 8, 33):
        raise InvalidImage("The PNG's header is damaged.")
    width, height, bit_depth, colour, compression, filtering, interlace = _HEADER.unpack_from(data, 16)
    if bit_depth not in _BIT_DEPTHS.get(colour, ()) or compression or filtering or interlace > 1:
        raise InvalidImage("The PNG's header has values that do not exist.")
    return width, height, bit_depth, colour
