"""Estimates the processor time of decoding from an image's header; `python -m bench.costs` measures it."""

from gateway.ingest.image_info import ImageInfo

_NS_PER_PIXEL_OF_A_SCAN, _NS_PER_BYTE_OF_SCANS = 0.5, 45
"""For JPEGs in several scans."""
_NS_PER_PIXEL_OF_A_FRAME = 20
_LEAST_SECONDS = 0.0002
_MARGIN, _MARGIN_SECONDS = 3, 0.05
"""A decode reserves this many times the estimate, plus a constant: other machines are slower."""
_MOST_SECONDS_PER_PIXEL, _MOST_SECONDS_PER_BYTE, _MOST_SECONDS = 200e-9, 50e-9, 0.55
"""Limit for one image: the slowest kind, 12-bit AVIF with alpha, takes some 100 ns a pixel."""
WORKER_START_SECONDS = 0.2
"""Processor time to start a decoder's process, until one was measured."""


def expected_seconds(info: ImageInfo, nbytes: int) -> float:
    """Upper bound of decoding and resizing an inspected image of `nbytes`, on one core of a small server."""
    pixels = info.width * info.height
    traits = info.format.traits
    per_pixel, per_byte = traits.ns_per_pixel, traits.ns_per_byte
    if info.scans > 1:
        per_pixel += info.scans * _NS_PER_PIXEL_OF_A_SCAN
        per_byte = _NS_PER_BYTE_OF_SCANS
    elif info.bit_depth > 8 or info.has_alpha:
        per_pixel *= 2
    return _LEAST_SECONDS + 1e-9 * (pixels * per_pixel + nbytes * per_byte)


def expected_frame_seconds(info: ImageInfo) -> float:
    """The estimate for one frame of an animation or a video; a video's size is unknown until it is open."""
    return _LEAST_SECONDS + 1e-9 * info.width * info.height * _NS_PER_PIXEL_OF_A_FRAME


def reserve_seconds(expected: float) -> float:
    """Seconds to reserve for a decode with this estimate."""
    return _MARGIN * expected + _MARGIN_SECONDS


def most_seconds(info: ImageInfo, nbytes: int) -> float:
    """Limit for one image, or one frame, of a file of `nbytes`."""
    return _MOST_SECONDS + info.width * info.height * _MOST_SECONDS_PER_PIXEL + nbytes * _MOST_SECONDS_PER_BYTE
