"""Videos, known by their containers: MP4 and QuickTime (ISO/IEC 14496-12), Matroska and WebM (RFC 9559), AVI."""

_EBML = b"\x1aE\xdf\xa3"
_BOXES = frozenset({b"ftyp", b"moov", b"mdat"})
_PICTURE = b"ftypmif3"
"""How HEIF with a minimized header begins, which no reader of HEIF's boxes recognises."""


def is_video(data: bytes) -> bool:
    """Whether the bytes begin as a video does; those of AVIF and HEIC begin alike, so ask after these."""
    in_boxes = data[4:8] in _BOXES and data[4:12] != _PICTURE
    return in_boxes or data.startswith(_EBML) or (data.startswith(b"RIFF") and data[8:12] == b"AVI ")
