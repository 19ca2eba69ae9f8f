"""Videos, known by their containers: MP4 and QuickTime (ISO/IEC 14496-12), Matroska and WebM (RFC 9559), AVI."""

_EBML = b"\x1aE\xdf\xa3"
_BOXES = frozenset({b"ftyp", b"moov", b"mdat"})


def is_video(data: bytes) -> bool:
    """Whether the bytes begin as a video does; those of AVIF and HEIC begin alike, so ask after these."""
    return data.startswith(_EBML) or data[4:8] in _BOXES or (data.startswith(b"RIFF") and data[8:12] == b"AVI ")
