"""The steps of an image in one process, for commands that read the user's own files: never for uploads."""

from dataclasses import dataclass, field

from gateway.decoder.decoding import decode
from gateway.decoder.headers import read_header
from gateway.ingest.image_formats import Header, ImageFormat
from gateway.ingest.inspection import DecodePolicy, check_size, encoded, examine, inspect, needs_decoding
from gateway.ingest.resizing import Resize
from gateway.ingest.upload import Limits, Upload


@dataclass(frozen=True, slots=True)
class Image:
    """The bytes that the service would send to Triton, and the upload's width and height in upright pixels."""

    payload: bytes = field(repr=False)
    width: int
    height: int


def prepare(upload: Upload, policy: DecodePolicy, resize: Resize | None = None) -> Image:
    """The image that the service would send to Triton, to a model with such a resize; raises ImageError."""
    info = _opened(upload.data, examine(upload, policy), policy.limits)
    payload = encoded(upload, info)
    if needs_decoding(info, policy):
        payload = decode(payload, info, resize or policy.max_side).to_bytes()
    return Image(payload, info.width, info.height)


def inspect_whole(data: bytes, limits: Limits) -> Header:
    """The header of any accepted file, held to the limits; raises ImageError."""
    return _opened(data, inspect(data, limits), limits)


def _opened(data: bytes, info: Header | ImageFormat, limits: Limits) -> Header:
    if isinstance(info, Header):
        return info
    info = read_header(data, info)
    check_size(info, limits)
    return info
