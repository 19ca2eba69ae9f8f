"""JPEG (ITU-T T.81)."""

import re
import struct
from dataclasses import dataclass

from gateway.errors import ImageError, InvalidImage, TooCostly, TruncatedImage, UnsupportedFormat
from gateway.ingest.formats.orientation import exif_orientation, xmp_orientation
from gateway.ingest.image_formats import Header, ImageFormat, upright

MOST_SCANNED_PIXELS = 1_000_000_000
"""Pixels × scans: each scan visits every pixel, at 0.5 ns a pixel, and may have only 15 bytes."""
MOST_SCANS = 1_000
_EOI, _SOS = b"\xff\xd9", b"\xff\xda"
# Like libjpeg, skip other bytes between segments, including fill bytes.
_MARKER = re.compile(rb"\xff([^\x00\xff])", re.DOTALL)
# In entropy-coded data, restart markers are skipped as well.
_MARKER_AFTER_SCAN = re.compile(rb"\xff([^\x00\x01\xd0-\xd7\xff])", re.DOTALL)
_SEGMENT = struct.Struct(">BBH").unpack_from
"""The marker of a segment, in two bytes, and its length."""
_NO_SEGMENT, _NO_MARKERS = (0, 0, 0), frozenset({0x00, 0xFF})
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})
_START_OF_IMAGE, _END_OF_IMAGE, _START_OF_SCAN, _APP1 = 0xD8, 0xD9, 0xDA, 0xE1
_PROGRESSIVE, _ARITHMETIC = frozenset({0xC2, 0xCA}), frozenset({0xC9, 0xCA})
_FRAMES = frozenset({0xC0, 0xC1, 0xC2, 0xC9, 0xCA})
_OTHER_FRAMES = frozenset({0xC3, 0xC5, 0xC6, 0xC7, 0xCB, 0xCD, 0xCE, 0xCF})
_XMP = b"http://ns.adobe.com/xap/1.0/\0"
_MAX_GAP_BYTES = 65_536
_MAX_SEGMENTS = 10_000


@dataclass(frozen=True, slots=True)
class _Frame:
    marker: int
    width: int
    height: int
    sampling: bytes
    """For each component its horizontal and vertical factor, four bits each."""

    def coefficient_bytes(self) -> int:
        """Memory of libjpeg for the coefficients of an image in several scans: 16 bits each."""
        factors = [(both >> 4, both & 15) for both in self.sampling]
        widest, highest = (max(each) or 1 for each in zip(*factors, strict=True))
        blocks = -(-self.width // (8 * widest)) * -(-self.height // (8 * highest))
        return blocks * sum(across * down for across, down in factors) * 64 * 2


def read(data: bytes) -> Header:
    """Baseline, extended and progressive JPEG of 8 bits with one, three or four components."""
    position, segments = 2, 0
    by_exif: int | None = None
    by_xmp: int | None = None
    frame: _Frame | None = None
    while (segments := segments + 1) <= _MAX_SEGMENTS:
        first, marker, length = _SEGMENT(data, position) if position + 4 <= len(data) else _NO_SEGMENT
        if first != 0xFF or marker in _NO_MARKERS:
            match = _MARKER.search(data, position, position + _MAX_GAP_BYTES)
            if match is None and position + _MAX_GAP_BYTES < len(data):
                raise InvalidImage("The JPEG's header contains bytes that do not belong to a header.")
            if match is None:
                raise TruncatedImage("The JPEG is cut off in its header.")
            position, marker = match.start(), data[match.start() + 1]
            length = int.from_bytes(data[position + 2 : position + 4], "big")
        position += 2
        if marker in _STANDALONE:
            continue
        if marker in (_START_OF_IMAGE, _END_OF_IMAGE):
            raise InvalidImage("The JPEG has no picture before its end.")
        end = position + length
        if length < 2 or end > len(data):
            raise _damaged_segment(data, position)
        if marker == _APP1 and by_exif is None and data.startswith(b"Exif\0\0", position + 2):
            by_exif = exif_orientation(data[position + 8 : end])
        elif marker == _APP1 and data.startswith(_XMP, position + 2):
            by_xmp = xmp_orientation(data, position + 2 + len(_XMP), end)
        elif marker in _FRAMES:
            if frame is not None:
                raise InvalidImage("The JPEG has more than one frame header.")
            frame = _read_frame(marker, data[position + 2 : end])
        elif marker in _OTHER_FRAMES:
            raise UnsupportedFormat("The JPEG is lossless or hierarchical, which is not supported.")
        elif marker == _START_OF_SCAN:
            break
        position = end
    else:
        raise _too_many_segments()
    if frame is None:
        raise InvalidImage("The JPEG has no frame header.")
    # Entropy-coded data never contains this marker. Phones append videos and second images after it; thumbnails are
    # before the scan.
    if not data.endswith(_EOI) and data.find(_EOI, end) < 0:
        raise TruncatedImage("The JPEG is cut off: it has no end marker.")
    several = frame.marker in _PROGRESSIVE or data[position + 2] != len(frame.sampling)
    scans = 1
    if several:
        scans = _check_scans(data, position, frame.width * frame.height, _MAX_SEGMENTS - segments)
    orientation = by_exif or by_xmp or 1
    return Header(
        ImageFormat.JPEG,
        *(upright(frame.width, frame.height, orientation) if orientation > 1 else (frame.width, frame.height)),
        orientation,
        # The time of arithmetic coding grows with the bytes, not the pixels; and OpenCV ignores XMP.
        gateway_only=frame.marker in _ARITHMETIC or (orientation != 1 and by_exif is None),
        coefficient_bytes=frame.coefficient_bytes() if several else 0,
        scans=scans,
    )


def _segment_end(data: bytes, position: int) -> int:
    length = int.from_bytes(data[position : position + 2], "big")
    end = position + length
    if length < 2 or end > len(data):
        raise _damaged_segment(data, position)
    return end


def _damaged_segment(data: bytes, position: int) -> ImageError:
    length = int.from_bytes(data[position : position + 2], "big")
    if position + length > len(data) or len(data) < position + 2:
        return TruncatedImage("The JPEG is cut off in its header.")
    return InvalidImage("The JPEG has a segment of an impossible length.")


def _read_frame(marker: int, frame: bytes) -> _Frame:
    if len(frame) < 6 or len(frame) < 6 + 3 * frame[5]:
        raise InvalidImage("The JPEG's frame header is too short.")
    precision, components = frame[0], frame[5]
    if precision != 8:
        raise UnsupportedFormat(f"The JPEG has {precision} bits per channel; only 8 are supported.")
    if components not in (1, 3, 4):
        raise InvalidImage(f"The JPEG has {components} components.")
    height, width = int.from_bytes(frame[1:3], "big"), int.from_bytes(frame[3:5], "big")
    return _Frame(marker, width, height, frame[7 : 6 + 3 * components : 3])


def _check_scans(data: bytes, position: int, pixels: int, segments: int) -> int:
    """An upper bound of the scans from the one at `position` on; raises TooCostly if they are too many."""
    most = min(MOST_SCANNED_PIXELS // max(pixels, 1), MOST_SCANS)
    # There may be more of these markers than scans, in comments or after the image, but never fewer.
    if (pairs := data.count(_SOS, position - 2)) <= most:
        return pairs
    scans, marker, end = 0, _START_OF_SCAN, position
    for _ in range(segments):
        scans += marker == _START_OF_SCAN
        if scans > most:
            raise TooCostly(f"The JPEG has more than {most} scans, too many for {pixels:,} pixels.")
        match = _MARKER_AFTER_SCAN.search(data, _segment_end(data, end) if marker not in _STANDALONE else end)
        if match is None:
            return scans
        marker, end = data[match.start() + 1], match.end()
        if marker == _END_OF_IMAGE:
            return scans
    raise _too_many_segments()


def _too_many_segments() -> InvalidImage:
    return InvalidImage("The JPEG has too many segments.")
