"""What the steps of an image do with its file; `image_steps` in gateway.inference.steps lists them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.errors import UnsupportedFormat
from gateway.ingest.decode_budget import Size, shrunk_bytes
from gateway.ingest.formats.bmp import with_file_header
from gateway.ingest.formats.png import essential
from gateway.ingest.image_formats import ImageFormat
from gateway.ingest.image_info import ImageInfo, Unopened
from gateway.ingest.inspection import inspect
from gateway.ingest.upload import Limits, Upload
from gateway.values.variables import DecodeMode, variable

if TYPE_CHECKING:
    from gateway.settings import Settings


@dataclass(frozen=True, slots=True)
class DecodePolicy:
    """Which images the gateway decodes itself, and the limits of what it accepts."""

    mode: DecodeMode
    above_pixels: int
    max_side: int
    limits: Limits

    @classmethod
    def from_settings(cls, settings: "Settings") -> "DecodePolicy":
        """The policy of the settings."""
        return cls(
            settings.decode, settings.decode_above_pixels, settings.decode_max_side, Limits.from_settings(settings)
        )


def examine(upload: Upload, policy: DecodePolicy, *, frames: bool = False) -> ImageInfo | Unopened:
    """The header of an upload, which is a video only if `frames` are requested; raises ImageError."""
    if upload.error is not None:
        raise upload.error
    info = inspect(upload.data, policy.limits, frames=frames)
    if policy.mode is DecodeMode.NEVER and not _passes(info):
        kind = ""
        if isinstance(info, ImageInfo):
            kind = "with transparency " if info.has_alpha else "of this kind "
        raise UnsupportedFormat(
            f"{info.format.value} images {kind}are refused by {variable('decode')}=never; set it to auto or always."
        )
    return info


def needs_decoding(info: ImageInfo, policy: DecodePolicy) -> bool:
    """Whether the gateway decodes an examined image, in one of its `decoders`."""
    if policy.mode is DecodeMode.AUTO:
        return not _passes(info) or info.width * info.height > policy.above_pixels
    return policy.mode is DecodeMode.ALWAYS


def encoded(upload: Upload, info: ImageInfo) -> bytes:
    """The bytes of an examined upload that a decoder or the preprocessor gets."""
    if not info.rewritten:
        return upload.data
    return essential(upload.data) if info.format is ImageFormat.PNG else with_file_header(upload.data)


def bytes_needed(upload: Upload, info: ImageInfo, size: Size | None) -> int:
    """Memory that this process needs for an image: its file or, if larger, the pixels that a decoder makes of it.

    `size` is that of the decoded image, None if it is passed on. The memory of a decoder's process is bounded there.
    """
    return max(len(upload.data), 0 if size is None else shrunk_bytes(info, size))


def _passes(info: ImageInfo | Unopened) -> bool:
    """Whether the preprocessor decodes it correctly and at a known cost; it would drop an alpha channel."""
    return isinstance(info, ImageInfo) and info.format.traits.passed_on and not info.has_alpha and not info.isolated
