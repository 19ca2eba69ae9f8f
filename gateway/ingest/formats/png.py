"""PNG (W3C, third edition) and APNG, of which the default image is used unless frames are requested."""

import struct
import zlib

from gateway.errors import InvalidImage, TruncatedImage, UnsupportedFormat
from gateway.ingest.formats.shared import Steps, exif_orientation, without_prefix, xmp_orientation
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
_ESSENTIAL = frozenset({b"IHDR", b"PLTE", b"tRNS", b"eXIf", b"IDAT", b"IEND"})
_ANIMATION = frozenset({b"acTL", b"fcTL", b"fdAT"})
_HARMLESS = frozenset({b"bKGD", b"cHRM", b"gAMA", b"pHYs", b"sBIT", b"sRGB", b"tIME"})
# The highest ratio of deflate (RFC 1951: 258 bytes from two bits).
_DEFLATE_RATIO = 1_032
_METADATA = frozenset({b"tEXt", b"zTXt", b"iTXt"})
_XMP, _RAW_PROFILE = b"XML:com.adobe.xmp", b"Raw profile type exif"
_MAX_TEXT_BYTES, _MAX_TEXTS = 1 << 18, 4
_MAX_KEYED_TEXT_BYTES = _MAX_TEXT_BYTES + 1_024
_CHUNK = struct.Struct(">I4s")
_HEADER = struct.Struct(">IIBBBBB")
_MAX_CHUNKS, _LEAST_CHUNK_BYTES, _MOST_CHUNKS = 1_000, 256, 20_000


def read(data: bytes) -> Header:
    """PNG of every colour type and bit depth."""
    width, height, bit_depth, colour = _read_header(data)
    row_bits = width * bit_depth * _CHANNELS[colour]
    if height * (row_bits // 8) > len(data) * _DEFLATE_RATIO:
        raise InvalidImage("The PNG's header promises more pixels than its bytes can hold.")
    position, has_picture, rewritten, animated = 33, False, False, False
    found = _Metadata()
    steps = Steps("PNG", min(_MAX_CHUNKS + len(data) // _LEAST_CHUNK_BYTES, _MOST_CHUNKS))
    has_alpha, transparent_gray = colour in (_GRAY_ALPHA, _RGB_ALPHA), None
    while True:
        steps.take()
        if position + 8 > len(data):
            raise TruncatedImage("The PNG is cut off: it has no end chunk.")
        length, kind = _CHUNK.unpack_from(data, position)
        start, position = position + 8, position + 12 + length
        # The last chunk too: a decoder may allocate the memory that a chunk's length announces.
        if position > len(data):
            raise TruncatedImage("The PNG is cut off in the middle of a chunk.")
        if kind == b"IDAT":
            has_picture = True
        elif kind == b"IEND":
            break
        elif kind in _METADATA:
            rewritten = True
            if _intact(data, start - 4, position):
                found.read(kind, data[start : start + min(length, _MAX_KEYED_TEXT_BYTES)])
        elif kind != b"eXIf" and (has_picture or kind not in _ESSENTIAL):
            rewritten = rewritten or kind not in _HARMLESS
            animated = animated or (kind == b"acTL" and not has_picture)
        elif kind == b"tRNS":
            has_alpha = True
            if colour == _GRAY:
                transparent_gray = int.from_bytes(data[start : start + 2], "big")
        elif kind == b"eXIf" and _intact(data, start - 4, position):
            found.read_exif(data[start : start + length], early=not has_picture)
    if not has_picture:
        raise InvalidImage("The PNG has no picture.")
    orientation = found.orientation()
    return Header(
        ImageFormat.PNG,
        *upright(width, height, orientation),
        orientation,
        bit_depth=bit_depth,
        has_alpha=has_alpha,
        transparent_gray=transparent_gray,
        rewritten=rewritten,
        # OpenCV reads the orientation in one place only.
        isolated=orientation != found.as_opencv_sees(),
        animated=animated,
    )


class _Metadata:
    """The orientation in texts and EXIF; as in Pillow, the last one of each kind counts."""

    def __init__(self) -> None:
        self._exif: bytes | None = None
        self._raw_profile: str | None = None
        self._xmp = b""
        self._texts = 0
        self._opencv: int | None = None

    def read_exif(self, tiff: bytes, *, early: bool) -> None:
        """Read an eXIf chunk; OpenCV uses the first one before the pixels if it has EXIF's byte order mark."""
        first, self._exif = self._exif is None, tiff
        if first and early and tiff.startswith((b"II", b"MM")):
            self._opencv = exif_orientation(tiff)

    def read(self, kind: bytes, contents: bytes) -> None:
        """Read a text: XMP, or ImageMagick's EXIF in hexadecimal digits."""
        key, _, rest = contents.partition(b"\0")
        if key not in (_XMP, _RAW_PROFILE) or self._texts == _MAX_TEXTS:
            return
        self._texts += 1
        text = _text(kind, rest)
        if key == _XMP:
            self._xmp = text
        else:
            self._raw_profile = text.decode("latin-1")

    def orientation(self) -> int:
        """The orientation by EXIF, else by the raw profile, else by XMP."""
        exif = self._exif
        if exif is None and self._raw_profile is not None:
            exif = _from_hexadecimal(self._raw_profile)
        return exif_orientation(without_prefix(exif or b"")) or xmp_orientation(self._xmp) or 1

    def as_opencv_sees(self) -> int:
        """The orientation that OpenCV applies."""
        return self._opencv or 1


def _text(kind: bytes, rest: bytes) -> bytes:
    """The text of a chunk after its keyword (PNG, section 11.3.3), up to _MAX_TEXT_BYTES."""
    if kind == b"tEXt":
        return rest
    if kind == b"zTXt":
        compressed, packed = True, rest[1:]
    else:
        compressed = rest[:1] == b"\1"
        packed = rest[2:].partition(b"\0")[2].partition(b"\0")[2]
    if not compressed:
        return packed
    try:
        return zlib.decompressobj().decompress(packed, _MAX_TEXT_BYTES)
    except zlib.error:
        return b""


def _from_hexadecimal(profile: str) -> bytes:
    """The bytes after the three header lines of a raw profile: an empty one, its name and its length."""
    try:
        return bytes.fromhex("".join(profile.split("\n")[3:]))
    except ValueError:
        return b""


def for_decoders(data: bytes, *, animated: bool = False) -> bytes:
    """An inspected PNG without the chunks that no decoder needs, such as texts and profiles.

    Of an animation the default image remains, which readers of plain PNG show; with `animated`, all frames.
    """
    kept, position, has_picture = [SIGNATURE], len(SIGNATURE), False
    while position < len(data):
        length, kind = _CHUNK.unpack_from(data, position)
        end = position + 12 + length
        if kind == b"IDAT":
            has_picture = True
        if (kind in _ESSENTIAL and (not has_picture or kind in (b"IDAT", b"IEND"))) or (
            animated and kind in _ANIMATION
        ):
            kept.append(data[position:end])
        if kind == b"IEND":
            break
        position = end
    return b"".join(kept)


def _intact(data: bytes, start: int, end: int) -> bool:
    """Whether the checksum of a chunk is correct; decoders skip ancillary chunks with a wrong one."""
    return zlib.crc32(memoryview(data)[start : end - 4]) == int.from_bytes(data[end - 4 : end], "big")


def _read_header(data: bytes) -> tuple[int, int, int, int]:
    if len(data) < 33:
        raise TruncatedImage("The PNG is cut off in its header.")
    if data[12:16] == b"CgBI":
        raise UnsupportedFormat(
            "The file is a PNG in the form that Apple's developer tools write for apps (CgBI), which is not supported: "
            "convert it to a plain PNG, as `pngcrush -revert-iphone-optimizations` does."
        )
    if _CHUNK.unpack_from(data, 8) != (13, b"IHDR") or not _intact(data, 12, 33):
        raise InvalidImage("The PNG's header is damaged.")
    width, height, bit_depth, colour, compression, filtering, interlace = _HEADER.unpack_from(data, 16)
    if bit_depth not in _BIT_DEPTHS.get(colour, ()) or compression or filtering or interlace > 1:
        raise InvalidImage("The PNG's header has values that do not exist.")
    return width, height, bit_depth, colour
