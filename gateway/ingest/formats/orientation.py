"""The orientation in metadata: in EXIF (CIPA DC-008, section 4.6) and in XMP (Adobe's XMP specification, part 2)."""

import re
import struct
import sys

ORIENTATION_TAG = 0x0112
_MAX_ENTRIES = 1_000
_PREFIX = b"Exif\0\0"
_XMP = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
_MAX_XMP_BYTES = 1 << 20


def exif_orientation(tiff: bytes) -> int | None:
    """The orientation, 1 to 8, in EXIF's TIFF structure; 1 if it is another number, None if there is none.

    Like OpenCV's reader it accepts a wrong byte order mark or type, so that both rotate an image alike.
    """
    # Some writers of other formats copy the prefix of a JPEG's segment.
    tiff = tiff.removeprefix(_PREFIX).removeprefix(_PREFIX)
    order = "<" if tiff.startswith(b"II") else ">"
    if len(tiff) < 8:
        return None
    magic, offset = struct.unpack_from(f"{order}HI", tiff, 2)
    if magic != 42 or offset + 2 > len(tiff):
        return None
    (count,) = struct.unpack_from(f"{order}H", tiff, offset)
    end = offset + 2 + min(count, _MAX_ENTRIES, (len(tiff) - offset - 2) // 12) * 12
    for tag, _, _, value, _ in struct.iter_unpack(f"{order}HHIHH", tiff[offset + 2 : end]):
        if tag == ORIENTATION_TAG:
            return int(value) if 1 <= value <= 8 else 1
    return None


def xmp_orientation(data: bytes, start: int = 0, end: int = sys.maxsize) -> int | None:
    """The orientation in an XMP packet, found as Pillow finds it; None if there is none."""
    match = _XMP.search(data, start, min(end, start + _MAX_XMP_BYTES))
    if match is None:
        return None
    return int(match[1]) if b"1" <= match[1] <= b"8" else 1
