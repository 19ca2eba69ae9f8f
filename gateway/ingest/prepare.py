"""From one upload to one image that Triton's preprocessor decodes.

The steps of an image, in their order (`gateway.inference.request` takes them):

1. `examine`: recognise the format; read the header, where it is that of a format that may be passed on
2. `Decoders.read_header`: otherwise read the header in a decoder's process
3. `inspection.check_size`: hold width and height to the limits
4. `needs_decoding`: pass the image on to Triton as it is (5a), or decode it here (5b)
5. a permit for `bytes_needed`, then a. `passed_on`, or b. `Decoders.decode` and `decoded`
6. `padding.pad`: several images in one tensor
"""

from dataclasses import dataclass, field

from gateway.errors import UnsupportedFormat
from gateway.ingest.decoders.budget import Size, shrunk_bytes
from gateway.ingest.formats.bmp import with_file_header
from gateway.ingest.formats.png import essential
from gateway.ingest.image_formats import ImageFormat
from gateway.ingest.image_info import ImageInfo, Unopened
from gateway.ingest.inspection import inspect
from gateway.ingest.upload import Upload
from gateway.ingest.upload_limits import Limits
from gateway.settings import DecodeMode, Settings, variable


@dataclass(frozen=True, slots=True)
class DecodePolicy:
    """Which images the gateway decodes, and the bounds it does so in."""

    mode: DecodeMode
    above_pixels: int
    max_side: int
    limits: Limits

    @classmethod
    def from_settings(cls, settings: Settings) -> "DecodePolicy":
        """The policy that the operator has set."""
        return cls(
            settings.decode, settings.decode_above_pixels, settings.decode_max_side, Limits.from_settings(settings)
        )


@dataclass(frozen=True, slots=True)
class Image:
    """An image on its way to Triton.

    `payload` is the upload's own bytes or an uncompressed picture; `width` and `height` are the upload's, upright.
    """

    index: int
    filename: str
    payload: bytes = field(repr=False)
    width: int
    height: int


def examine(upload: Upload, policy: DecodePolicy, *, frames: bool = False) -> ImageInfo | Unopened:
    """Inspect an upload, of which `frames` may be requested: microseconds, fit for the event loop.

    Raises any ImageError but UndecodableImage.
    """
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


def passed_on(upload: Upload, info: ImageInfo) -> Image:
    """The image of an examined upload that Triton's preprocessor decodes."""
    return Image(upload.index, upload.filename, encoded(upload, info), info.width, info.height)


def decoded(upload: Upload, info: ImageInfo, pixels: bytes) -> Image:
    """The image of an examined upload that was decoded to `pixels`, an uncompressed PPM."""
    return Image(upload.index, upload.filename, pixels, info.width, info.height)


def encoded(upload: Upload, info: ImageInfo) -> bytes:
    """What a decoder gets of an examined upload."""
    if not info.rewritten:
        return upload.data
    return essential(upload.data) if info.format is ImageFormat.PNG else with_file_header(upload.data)


def all_frames(upload: Upload, info: ImageInfo, policy: DecodePolicy) -> bytes:
    """What a decoder gets of an examined, animated upload; raises UnsupportedFormat where the gateway decodes none."""
    if policy.mode is DecodeMode.NEVER:
        raise UnsupportedFormat(
            f"Frames of {info.format.value} images are refused by {variable('decode')}=never; set it to auto or always."
        )
    return essential(upload.data, animated=True) if info.format is ImageFormat.PNG else upload.data


def bytes_needed(upload: Upload, info: ImageInfo, size: Size | None) -> int:
    """Memory that this process needs for the image: its own bytes or, decoded to `size`, its pixels where larger.

    What a decoder holds meanwhile is bounded by the decoders.
    """
    return max(len(upload.data), 0 if size is None else shrunk_bytes(info, size))


def _passes(info: ImageInfo | Unopened) -> bool:
    """Whether the preprocessor itself decodes it right, and at a known cost.

    It drops an alpha channel, and sees what lay beneath.
    """
    return isinstance(info, ImageInfo) and info.format.traits.passed_on and not info.has_alpha and not info.isolated
