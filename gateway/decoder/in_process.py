"""The steps of an image in one process, for commands that read the user's own files: never for uploads."""

from dataclasses import dataclass, field

from gateway.decoder.decoding import decode
from gateway.decoder.pillow import read_header
from gateway.ingest.image_formats import Header, ImageFormat
from gateway.ingest.inspection import DecodePolicy, check_size, encoded, examine, needs_decoding
from gateway.ingest.resizing import Resize
from gateway.ingest.upload import Upload, UploadLimits


@dataclass(frozen=True, slots=True)
class Image:
    """The bytes that the service would send to Triton, and the upload's width and height in upright pixels."""

    payload: bytes = field(repr=False)
    width: int
    height: int


def prepare(upload: Upload, policy: DecodePolicy, resize: Resize | None = None) -> Image:
    """The image that the service would send to Triton, to a model with such a resize; raises ImageError."""
    info = whole_header(upload.data, examine(upload, policy), policy.limits)
    if needs_decoding(info, policy):
        payload = decode(upload.data, info, resize or policy.max_side).to_bytes()
    else:
        payload = encoded(upload, info)
    return Image(payload, info.width, info.height)


def whole_header(data: bytes, found: Header | ImageFormat, limits: UploadLimits) -> Header:
    """The header of a file that was inspected, held to the limits; raises ImageError."""
    if isinstance(found, Header):
        return found
    info = read_header(data, found)
    check_size(info, limits)
    return info
