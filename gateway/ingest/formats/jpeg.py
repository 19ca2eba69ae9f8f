"""JPEG (ITU-T T.81)."""

import re

from gateway.errors import InvalidImage, TruncatedImage, UnsupportedFormat
from gateway.ingest.formats.exif import exif_orientation
from gateway.ingest.image_info import ImageFormat, ImageInfo, upright

SIGNATURE = b"\xff\xd8\xff"
_EOI = b"\xff\xd9"
# As libjpeg does, pass over whatever stands between segments, fill bytes included.
_MARKER = re.compile(rb"\xff([^\x00\xff])", re.DOTALL)
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})
_START_OF_IMAGE, _END_OF_IMAGE, _START_OF_SCAN, _APP1 = 0xD8, 0xD9, 0xDA, 0xE1
_FRAMES = frozenset({0xC0, 0xC1, 0xC2, 0xC9, 0xCA})
_OTHER_FRAMES = frozenset({0xC3, 0xC5, 0xC6, 0xC7, 0xCB, 0xCD, 0xCE, 0xCF})
_MAX_GAP_BYTES = 65_536
_MAX_SEGMENTS = 10_000


def read_jpeg(data: bytes) -> ImageInfo:
    """Baseline, extended and progressive JPEG of 8 bits with one, three or four components."""
    position = 2
    orientation: int | None = None
    size: tuple[int, int] | None = None
    for _ in range(_MAX_SEGMENTS):
        match = _MARKER.search(data, position, position + _MAX_GAP_BYTES)
        if match is None and position + _MAX_GAP_BYTES < len(data):
            raise InvalidImage("The JPEG's header has something in it that is no header.")
        if match is None:
            raise TruncatedImage("The JPEG is cut off in its header.")
        marker, position = data[match.start() + 1], match.end()
        if marker in _STANDALONE:
            continue
        if marker in (_START_OF_IMAGE, _END_OF_IMAGE):
            raise InvalidImage("The JPEG has no picture before its end.")
        length = int.from_bytes(data[position : position + 2], "big")
        end = position + length
        if end > len(data) or len(data) < position + 2:
            raise TruncatedImage("The JPEG is cut off in its header.")
        if length < 2:
            raise InvalidImage("The JPEG has a segment of an impossible length.")
        if marker == _APP1 and orientation is None and data.startswith(b"Exif\0\0", position + 2):
            orientation = exif_orientation(data[position + 8 : end])
        elif marker in _FRAMES:
            if size is not None:
                raise InvalidImage("The JPEG has more than one frame header.")
            size = _frame_size(data[position + 2 : end])
        elif marker in _OTHER_FRAMES:
            raise UnsupportedFormat("The JPEG is lossless or hierarchical, which is not taken.")
        elif marker == _START_OF_SCAN:
            if size is None:
                raise InvalidImage("The JPEG has no frame header.")
            # Entropy-coded data never holds this pair, and what phones append after it (videos, second pictures) does
            # no harm; thumbnails lie before the scan.
            if not data.endswith(_EOI) and data.find(_EOI, end) < 0:
                raise TruncatedImage("The JPEG is cut off: it has no end marker.")
            orientation = orientation or 1
            return ImageInfo(ImageFormat.JPEG, *upright(*size, orientation), orientation)
        position = end
    raise InvalidImage("The JPEG's header has too many segments.")


def _frame_size(frame: bytes) -> tuple[int, int]:
    if len(frame) < 6 or len(frame) < 6 + 3 * frame[5]:
        raise InvalidImage("The JPEG's frame header is too short.")
    precision, components = frame[0], frame[5]
    if precision != 8:
        raise UnsupportedFormat(f"The JPEG has {precision} bits per channel; 8 are taken.")
    if components not in (1, 3, 4):
        raise InvalidImage(f"The JPEG has {components} components.")
    return int.from_bytes(frame[3:5], "big"), int.from_bytes(frame[1:3], "big")
