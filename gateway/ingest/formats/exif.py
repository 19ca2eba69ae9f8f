"""The orientation in EXIF metadata (CIPA DC-008, section 4.6)."""

import struct

ORIENTATION_TAG = 0x0112
_MAX_ENTRIES = 1_000


def exif_orientation(tiff: bytes) -> int | None:
    """The orientation 1 to 8 out of EXIF's TIFF structure; 1 where it is another number, None where there is none.

    As lenient as OpenCV's reader, so that both turn a picture the same way: neither minds a wrong order mark or type.
    """
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
