"""The memory and the processor time that decoding an image may take, by its header."""

from dataclasses import dataclass
from math import ceil

from gateway.ingest.image_formats import Header, ImageFormat
from gateway.ingest.resizing import FAST_OVERSAMPLING, Resize, TensorInput

MIB = 2**20
REDUCTIONS = (8, 4, 2)
"""Factors by which libjpeg can reduce an image while it decodes it."""

Size = int | Resize | TensorInput
"""What a decoder makes of an image: as its model's preprocessor resizes, at most this many pixels on its shorter side,
or the model's input."""

_BYTES_PER_PIXEL = 16
"""Address space for a decoder of a format that has no figure of its own."""
_ANIMATION_BYTES_PER_PIXEL = 48
"""For an animation: its canvas, the previous one, the area of a frame, and the frame on white."""
_MARGIN_BYTES = 96 * MIB

_NS_PER_PIXEL_OF_A_SCAN, _NS_PER_BYTE_OF_SCANS = 0.5, 45
"""For JPEGs in several scans."""
_NS_PER_PIXEL_OF_A_FRAME = 20
_LEAST_SECONDS = 0.0002
_RESERVED_TIMES, _RESERVED_SECONDS = 3, 0.05
"""A decode reserves this many times the estimate, plus a constant: other machines are slower."""
_MOST_SECONDS_PER_PIXEL, _MOST_SECONDS_PER_BYTE, _MOST_SECONDS = 200e-9, 50e-9, 0.55
"""Limit for one image: the slowest kind, 12-bit AVIF with alpha, takes some 100 ns a pixel."""
WORKER_START_SECONDS = 0.2
"""Processor time to start a decoder's process, until one was measured."""


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """Limits of one image, whatever its size; the account of a request begins with `request_cpu_seconds`."""

    cpu_seconds: float
    memory_bytes: int
    image_pixels: int = 1_000_000_000
    """Largest width × height that OpenCV opens."""
    request_cpu_seconds: float = 3.0


def reduction(info: Header, size: Size) -> int:
    """The factor by which a JPEG is reduced while it is decoded; 1 if every pixel is needed."""
    if isinstance(size, TensorInput):
        size = size.resize
    if info.format is not ImageFormat.JPEG or (isinstance(size, Resize) and not size.fast):
        return 1
    least = FAST_OVERSAMPLING * max(size.size) if isinstance(size, Resize) else size
    return next((factor for factor in REDUCTIONS if min(info.width, info.height) // factor >= least), 1)


def peak_bytes(info: Header, size: Size) -> int:
    """Peak memory of a decoder: twice the pixels, or the figure of its format."""
    pixels = info.width * info.height
    return max(2 * decoded_bytes(info, size), pixels * info.format.traits.bytes_per_pixel)


def decoded_bytes(info: Header, size: Size) -> int:
    """Bytes of the pixels before they are resized, and of a JPEG's coefficients."""
    factor = reduction(info, size)
    channels = 4 if info.has_alpha else 3
    sample_bytes = 2 if info.has_alpha and info.bit_depth > 8 else 1
    pixels = -(-info.width // factor) * -(-info.height // factor)
    return pixels * channels * sample_bytes + info.coefficient_bytes


def shrunk_bytes(info: Header, size: Size) -> int:
    """Bytes of the decoder's output; a few more if it was decoded at a reduced scale."""
    if isinstance(size, TensorInput):
        return size.nbytes
    if isinstance(size, Resize):
        height, width = size.size_of(info.height, info.width)
        return height * width * 3
    scale = min(1.0, size / min(info.width, info.height))
    return ceil(info.width * scale) * ceil(info.height * scale) * 3


def memory_limit(info: Header, nbytes: int) -> int:
    """The address space that decoding a file of `nbytes` may add to its process."""
    pixels = info.width * info.height
    bytes_per_pixel = info.format.traits.bytes_per_pixel or _BYTES_PER_PIXEL
    return _MARGIN_BYTES + 2 * nbytes + pixels * bytes_per_pixel + info.coefficient_bytes


def open_bytes(info: Header, nbytes: int) -> int:
    """The address space that an open animation of `nbytes` may add to its process."""
    return _MARGIN_BYTES + 3 * nbytes + info.width * info.height * _ANIMATION_BYTES_PER_PIXEL


def expected_seconds(info: Header, nbytes: int) -> float:
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


def expected_frame_seconds(info: Header) -> float:
    """The estimate for one frame of an animation."""
    return _LEAST_SECONDS + 1e-9 * info.width * info.height * _NS_PER_PIXEL_OF_A_FRAME


def reserve_seconds(expected: float) -> float:
    """Seconds to reserve for a decode with this estimate."""
    return _RESERVED_TIMES * expected + _RESERVED_SECONDS


def most_seconds(info: Header, nbytes: int) -> float:
    """Limit for one image, or one frame, of a file of `nbytes`."""
    return _MOST_SECONDS + info.width * info.height * _MOST_SECONDS_PER_PIXEL + nbytes * _MOST_SECONDS_PER_BYTE
