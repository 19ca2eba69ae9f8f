"""Recognises the format of an upload by its bytes, reads its header, and decides whether the gateway decodes it.

The name and the Content-Type of an upload are ignored.
"""

import re
import struct

from gateway.errors import EmptyFile, ImageTooLarge, InvalidImage, TruncatedImage, UnsupportedFormat
from gateway.ingest.formats import jpeg, png, webp
from gateway.ingest.image_formats import FORMATS, Header, ImageFormat, accepted_formats
from gateway.ingest.upload import UploadLimits
from gateway.values.variables import DecodeMode, variable

MAX_IMAGE_SIDE = 16_384
"""Width or height of one image in pixels."""
ABOVE_PIXELS = 4_000_000
"""With decode=auto, images with more pixels are decoded in the gateway: from about this size on, the smaller call saves
more than decoding here costs."""
MAX_SIDE = 1_024
"""Shorter side in pixels of an image decoded in the gateway, if the input size of its model is unknown."""
_MAGIC = [(each, re.compile(traits.magic, re.DOTALL), traits.brands) for each, traits in FORMATS.items()]
_NO_BRANDS: frozenset[bytes] = frozenset()
_READERS = {ImageFormat.JPEG: jpeg.read, ImageFormat.PNG: png.read, ImageFormat.WEBP: webp.read}
"""For the formats that may be passed on; a decoder's process reads the other headers."""

# MP4 and QuickTime; Matroska and WebM; AVI.
_VIDEO = re.compile(rb".{4}(ftyp(?!mif)|moov|mdat)|\x1aE\xdf\xa3|RIFF.{4}AVI ", re.DOTALL)


def inspect(data: bytes, limits: UploadLimits) -> Header | ImageFormat:
    """The header of a file with its size and ending checked, or the format of a file whose header a decoder reads.

    It takes microseconds for any image size. Raises EmptyFile, UnsupportedFormat (also for what must be decoded here
    and must not), InvalidImage, TruncatedImage or ImageTooLarge.
    """
    if not data:
        raise EmptyFile
    image_format = recognize(data)
    if image_format is None:
        video = "a video (send its frames to WS /stream, as `gateway stream` does), " if _VIDEO.match(data) else ""
        raise UnsupportedFormat(f"The file is {video}not a {accepted_formats()} image.")
    if image_format.traits.may_pass_on:
        try:
            info = _READERS[image_format](data)
        except (IndexError, struct.error) as exc:
            raise TruncatedImage(f"The {image_format.value} is cut off in its header.") from exc
        if info is not None:
            check_size(info, limits)
            if not _passes(info):
                require_decoders(limits)
            return info
    elif not image_format.available:
        name, package = image_format.value, image_format.traits.package.replace("_", "-")
        raise UnsupportedFormat(
            f"This service does not decode {name}: send JPEG, or ask its operator to install {package} "
            f"(the extra {name.lower()}; `make up EXTRAS={name.lower()}`)."
        )
    require_decoders(limits)
    return image_format


def recognize(data: bytes) -> ImageFormat | None:
    """The format of a file by its first bytes; None for any other."""
    brands = _brands(data) if data[4:8] == b"ftyp" else _NO_BRANDS
    for each, magic, its in _MAGIC:
        if magic.match(data) or not its.isdisjoint(brands):
            return each
    return None


def _brands(data: bytes) -> frozenset[bytes]:
    """The brands of an ISO base media file."""
    end = min(int.from_bytes(data[:4], "big"), 1_024, len(data))
    return frozenset(data[position : position + 4] for position in (8, *range(16, end - 3, 4)))


def check_size(info: Header, limits: UploadLimits) -> None:
    """Raise InvalidImage or ImageTooLarge if width and height are not within the limits."""
    width, height = info.width, info.height
    if width < 1 or height < 1:
        raise InvalidImage("The image has no width or no height.")
    if max(width, height) > MAX_IMAGE_SIDE:
        raise ImageTooLarge(
            f"The image is {width} × {height} pixels; a side may have at most {MAX_IMAGE_SIDE:,}: scale it down.",
            limit="max_image_side",
            value=MAX_IMAGE_SIDE,
        )
    if width * height > limits.max_image_pixels:
        most = limits.max_image_pixels
        raise ImageTooLarge(
            f"The image has {width * height:,} pixels ({width} × {height}); at most {most:,} are allowed: "
            "scale it down.",
            limit="max_image_pixels",
            value=most,
        )


def require_decoders(limits: UploadLimits) -> None:
    """Raise UnsupportedFormat if the gateway must not decode."""
    if limits.decode is DecodeMode.NEVER:
        raise UnsupportedFormat(
            f"The gateway would have to decode the image, which {variable('decode')}=never forbids: set it to auto."
        )


def needs_decoding(info: Header, limits: UploadLimits) -> bool:
    """Whether the gateway decodes an inspected image, in one of its `decoders`."""
    if limits.decode is DecodeMode.AUTO:
        return not _passes(info) or info.width * info.height > ABOVE_PIXELS
    return limits.decode is DecodeMode.ALWAYS


def for_triton(data: bytes, header: Header) -> bytes:
    """The bytes of an inspected file that the preprocessor gets."""
    return png.for_decoders(data) if header.rewritten else data


def _passes(info: Header) -> bool:
    """Whether the preprocessor decodes it correctly and at a known cost; it would drop an alpha channel."""
    return info.format.traits.may_pass_on and not info.has_alpha and not info.gateway_only
