"""Windows bitmaps (BITMAPCOREHEADER to BITMAPV5HEADER)."""

import struct
from dataclasses import replace

from gateway.errors import InvalidImage, TruncatedImage, UnsupportedFormat
from gateway.ingest.image_formats import Header, ImageFormat

_CORE_HEADER_BYTES, _INFO_HEADER_BYTES = 12, 40
_BITS = (1, 4, 8, 16, 24, 32)
_HEADER_BYTES = frozenset({_CORE_HEADER_BYTES, 40, 52, 56, 64, 108, 124})
_UNCOMPRESSED, _RLE8, _RLE4, _BITFIELDS, _ALPHA_BITFIELDS = 0, 1, 2, 3, 6
_ALPHA_MASK_OFFSET = 66
_LONGEST_PADDING = 3
"""Bytes after a row: the next one begins at a multiple of four bytes."""


def for_decoders(data: bytes) -> bytes:
    """A bitmap as decoders expect it: a file header, then header, masks, palette and pixels, with a whole last row.

    `data` is a DIB, which has no file header, or a file of which `read` has said that it is rewritten.
    """
    if data.startswith(b"BM") and not _points_into_header(data):
        return data + bytes(_LONGEST_PADDING)
    dib = data[14:] if data.startswith(b"BM") else data
    header_bytes, bits, compression, colours = struct.unpack_from("<I10xHI12xI", dib)
    masks = {_BITFIELDS: 12, _ALPHA_BITFIELDS: 16}.get(compression, 0) if header_bytes == _INFO_HEADER_BYTES else 0
    palette = 4 * (colours or 1 << bits) if bits <= 8 else 0
    offset = 14 + header_bytes + masks + palette
    return (
        struct.pack("<2sIHHI", b"BM", (14 + len(dib)) & 0xFFFFFFFF, 0, 0, offset & 0xFFFFFFFF)
        + dib
        + bytes(_LONGEST_PADDING)
    )


def _points_into_header(data: bytes) -> bool:
    """Whether the offset of the pixels is 0 or in the header; browsers then read the pixels after the palette."""
    if len(data) < 14 + _INFO_HEADER_BYTES:
        return False
    offset = int.from_bytes(data[10:14], "little")
    header_bytes = int.from_bytes(data[14:18], "little")
    return _INFO_HEADER_BYTES <= header_bytes < 1_024 and offset < 14 + header_bytes


def read(data: bytes) -> Header:
    """Bitmaps of 1, 4, 8, 16, 24 and 32 bits, plain, run-length coded and with bit fields.

    Also a DIB, which is a bitmap without its file header, as clipboards hold it.
    """
    if data.startswith(b"BM") and not _points_into_header(data):
        return _read(data)
    return replace(_read(for_decoders(data)), rewritten=True)


def _read(data: bytes) -> Header:
    pixels_offset, header_bytes = struct.unpack_from("<II", data, 10)
    if header_bytes not in _HEADER_BYTES:
        raise InvalidImage("The BMP's header has an unknown size.")
    if len(data) < 14 + header_bytes:
        raise TruncatedImage("The BMP is cut off in its header.")
    compression = _UNCOMPRESSED
    if header_bytes == _CORE_HEADER_BYTES:
        width, height, planes, bits = struct.unpack_from("<HHHH", data, 18)
    else:
        width, height, planes, bits, compression = struct.unpack_from("<iiHHI", data, 18)
    if width <= 0 or pixels_offset < 14 + header_bytes:
        raise InvalidImage("The BMP's header contradicts itself.")
    if compression in (_RLE8, _RLE4):
        allowed: tuple[int, ...] = (8,) if compression == _RLE8 else (4,)
        # The length of run-length coded pixels is known once they are decoded; until then the header's counts.
        (size_of_pixels,) = struct.unpack_from("<I", data, 34)
        needed = size_of_pixels or int.from_bytes(data[2:6], "little") - pixels_offset
    elif compression in (_BITFIELDS, _ALPHA_BITFIELDS):
        allowed, needed = (16, 32), _pixel_bytes(width, height, bits)
    elif compression == _UNCOMPRESSED:
        allowed, needed = _BITS, _pixel_bytes(width, height, bits)
    else:
        raise UnsupportedFormat(
            "The BMP contains another image format, which is not supported: send that image itself."
        )
    if bits not in allowed:
        raise InvalidImage("The BMP's header contradicts itself.")
    has_alpha = (
        bits == 32
        and compression != _UNCOMPRESSED
        and header_bytes > 52
        and data[_ALPHA_MASK_OFFSET : _ALPHA_MASK_OFFSET + 4] != b"\0\0\0\0"
    )
    # OpenCV fills five bits up with zeros, reads some masks differently, and expects the palette after the header.
    usual = compression == _UNCOMPRESSED and bits != 16 and planes == 1
    if bits <= 8 and header_bytes != _CORE_HEADER_BYTES:
        (colours,) = struct.unpack_from("<I", data, 46)
        usual = usual and pixels_offset == 14 + header_bytes + 4 * (colours or 1 << bits)
    # OpenCV takes a run after the end of a row for the start of the next one: Pillow decodes run lengths.
    runs = compression in (_RLE8, _RLE4)
    info = Header(ImageFormat.BMP, width, abs(height), has_alpha=has_alpha, isolated=not usual, by_pillow=not usual)
    missing = pixels_offset + needed - len(data)
    if missing <= 0:
        return info
    if runs or missing > needed // (abs(height) or 1) - (width * bits + 7) // 8:
        raise TruncatedImage("The BMP is cut off: it is shorter than its header says.")
    return replace(info, rewritten=True)  # the last row is not padded


def _pixel_bytes(width: int, height: int, bits: int) -> int:
    """Rows are padded to four bytes."""
    return (width * bits + 31) // 32 * 4 * abs(height)
