"""The jobs of a decoder's process. A plug-in has more: see `gateway.ingest.decoder_process.Job`."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from numpy.typing import NDArray

from gateway.decoder import decoding, pillow
from gateway.decoder.damage import DamageDetector
from gateway.decoder.decoding import Buffer, Pixels, ppm
from gateway.decoder.tensors import to_tensor
from gateway.ingest.image_formats import Header, ImageFormat, Size
from gateway.ingest.resizing import TensorInput


@dataclass(frozen=True, slots=True)
class Made:
    """A result of a job: `fields` of its Reply, and the parts of its output."""

    fields: dict[str, Any] = field(default_factory=dict)
    parts: tuple[bytes | memoryview, ...] = ()
    is_last: bool = False
    """Of an iterator: whether it is closed now."""


_HEADER_FIELDS = ("width", "height", "orientation", "bit_depth", "has_alpha", "animated")
_detector = cache(DamageDetector)


def read_header(data: NDArray[Any], image_format: ImageFormat) -> Made:
    """See `pillow.read_header`."""
    info = pillow.read_header(data.tobytes(), image_format)
    return Made({name: getattr(info, name) for name in _HEADER_FIELDS})


def decode(data: Buffer, info: Header, size: Size) -> Made:
    """See `decoding.decode`."""
    detector = _detector()
    with detector:
        pixels = decoding.decode(data, info, size)
    return Made({"damaged": detector.damaged}, as_wanted(pixels, size))


def as_wanted(pixels: Pixels, size: Size) -> tuple[bytes | memoryview, ...]:
    """The parts of an image as its model wants it."""
    return (to_tensor(pixels, size).data.cast("B"),) if isinstance(size, TensorInput) else ppm(pixels)
