"""The steps of an image in one process, for commands that read the user's own files: never for uploads."""

from dataclasses import dataclass, field

from gateway.decoder.decoding import decode, ppm
from gateway.decoder.pillow import read_header
from gateway.ingest.image_formats import Header
from gateway.ingest.inspection import MAX_SIDE, check_size, for_triton, inspect, needs_decoding
from gateway.ingest.resizing import Resize
from gateway.ingest.upload import UploadLimits


@dataclass(frozen=True, slots=True)
class Image:
    """The bytes that the service would send to Triton, and the upload's width and height in upright pixels."""

    payload: bytes = field(repr=False)
    width: int
    height: int


def prepare(data: bytes, limits: UploadLimits, resize: Resize | None = None) -> Image:
    """The image that the service would send to Triton, to a model with such a resize; raises ImageError."""
    header = whole_header(data, limits)
    if needs_decoding(header, limits):
        payload = b"".join(ppm(decode(data, header, resize or MAX_SIDE)))
    else:
        payload = for_triton(data, header)
    return Image(payload, header.width, header.height)


def whole_header(data: bytes, limits: UploadLimits) -> Header:
    """The header of any accepted file, held to the limits; raises ImageError."""
    found = inspect(data, limits)
    if isinstance(found, Header):
        return found
    header = read_header(data, found)
    check_size(header, limits)
    return header
