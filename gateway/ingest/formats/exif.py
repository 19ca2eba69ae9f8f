"""The orientation in EXIF metadata (CIPA DC-008, section 4.6)."""

import struct

ORIENTATION_TAG = 0x0112
_SHORT = 3
_MAX_ENTRIES = 1_000


def exif_orientation(tiff: bytes) -> int:
    """The orientation 1 to 8 out of EXIF's TIFF structure; 1 where there is none that can be read."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or len(tiff) < 14:
        return 1
    magic, offset = struct.unpack_from(f"{order}HI", tiff, 2)
    if magic != 42 or offset + 2 > len(tiff):
        return 1
    (count,) = struct.unpack_from(f"{order}H", tiff, offset)
    end = offset + 2 + min(count, _MAX_ENTRIES, (len(tiff) - offset - 2) // 12) * 12
    for tag, kind, _, value, _ in struct.iter_unpack(f"{order}HHIHH", tiff[offset + 2 : end]):
        if tag == ORIENTATION_TAG and kind == _SHORT:
            return int(value) if 1 <= value <= 8 else 1
    return 1
