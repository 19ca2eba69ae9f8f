"""What decoding an image may take of memory, by what its header says."""

from dataclasses import dataclass
from math import ceil

from gateway.ingest.image_formats import ImageFormat
from gateway.ingest.image_info import ImageInfo
from gateway.ingest.resizing import FAST_OVERSAMPLING, Resize

MIB = 2**20
REDUCTIONS = (8, 4, 2)
"""Factors by which libjpeg makes a picture smaller while it decodes it."""

Size = int | Resize
"""What a decoded picture becomes: as its model's preprocessor would resize it, or no more pixels than this on its
shorter side."""

_BYTES_PER_PIXEL = 16
"""Address space for a decoder of a format that has no figure of its own."""
_ANIMATION_BYTES_PER_PIXEL = 48
"""Of an animated picture: its canvas, the one before, what a frame covers, and the frame on white."""
_VIDEO_BYTES = 384 * MIB
"""A video's size is not known before it is opened: of 4K in H.264, sixteen pictures kept for those that follow."""
_MARGIN_BYTES = 96 * MIB


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """The most that any one image may take, whatever its size; `request_cpu_seconds` is where an account begins."""

    cpu_seconds: float
    memory_bytes: int
    image_pixels: int = 1_000_000_000
    """Width × height that OpenCV opens at most."""
    request_cpu_seconds: float = 3.0


def reduction(info: ImageInfo, size: Size) -> int:
    """The factor by which a JPEG is made smaller while it is decoded: 1 where every pixel counts."""
    if info.format is not ImageFormat.JPEG or (isinstance(size, Resize) and not size.fast):
        return 1
    least = FAST_OVERSAMPLING * max(size.size) if isinstance(size, Resize) else size
    return next((factor for factor in REDUCTIONS if min(info.width, info.height) // factor >= least), 1)


def peak_bytes(info: ImageInfo, size: Size) -> int:
    """Bytes that a decoder holds at its worst moment: the pixels twice, or what its format is known to need."""
    pixels = info.width * info.height
    return max(2 * decoded_bytes(info, size), pixels * info.format.traits.bytes_per_pixel)


def decoded_bytes(info: ImageInfo, size: Size) -> int:
    """Bytes of the picture's pixels before they are shrunk, and of a JPEG's coefficients."""
    factor = reduction(info, size)
    channels = 4 if info.has_alpha else 3
    sample_bytes = 2 if info.has_alpha and info.bit_depth > 8 else 1
    pixels = -(-info.width // factor) * -(-info.height // factor)
    return pixels * channels * sample_bytes + info.coefficient_bytes


def shrunk_bytes(info: ImageInfo, size: Size) -> int:
    """Bytes of the picture that comes out of a decoder, RGB; a few more where it was decoded at a reduced scale."""
    if isinstance(size, Resize):
        height, width = size.size_of(info.height, info.width)
        return height * width * 3
    scale = min(1.0, size / min(info.width, info.height))
    return ceil(info.width * scale) * ceil(info.height * scale) * 3


def memory_limit(info: ImageInfo, nbytes: int) -> int:
    """The address space that decoding a file of `nbytes` may add to its process."""
    pixels = info.width * info.height
    bytes_per_pixel = info.format.traits.bytes_per_pixel or _BYTES_PER_PIXEL
    return _MARGIN_BYTES + 2 * nbytes + pixels * bytes_per_pixel + info.coefficient_bytes


def open_bytes(info: ImageInfo, nbytes: int) -> int:
    """The address space that an open file of `nbytes` may add to its process: an animation, or one of unknown size."""
    canvas_bytes = info.width * info.height * _ANIMATION_BYTES_PER_PIXEL
    return _MARGIN_BYTES + 3 * nbytes + (_VIDEO_BYTES if info.format is ImageFormat.VIDEO else canvas_bytes)
