"""The whole of ingest in one process, for commands that read the user's own files: never for what is uploaded."""

from gateway.ingest.decoding import decode
from gateway.ingest.prepare import DecodePolicy, Image, decoded, encoded, examine, needs_decoding, passed_on
from gateway.ingest.resizing import Resize
from gateway.ingest.upload import Upload


def prepare(upload: Upload, policy: DecodePolicy, resize: Resize | None = None) -> Image:
    """The image that the service would send to Triton, to a model with such a resize; raises ImageError."""
    info = examine(upload, policy)
    if not needs_decoding(info, policy):
        return passed_on(upload, info)
    return decoded(upload, info, decode(encoded(upload, info), info, resize or policy.max_side).to_bytes())
