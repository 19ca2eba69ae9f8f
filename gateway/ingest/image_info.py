"""The properties of an image that are known before it is decoded."""

from dataclasses import dataclass

from gateway.ingest.image_formats import ImageFormat


@dataclass(frozen=True, slots=True)
class Unopened:
    """A file of a format whose header is read in a decoder's process."""

    format: ImageFormat


@dataclass(slots=True)
class ImageInfo:
    """The header of the first frame or page of an image."""

    format: ImageFormat
    width: int
    """Pixels of the upright image: after `orientation` was applied."""
    height: int
    orientation: int = 1
    """EXIF's 1 to 8; 1: as stored."""
    bit_depth: int = 8
    """The largest of the channels."""
    has_alpha: bool = False
    """Whether pixels may be transparent."""
    premultiplied: bool = False
    """Whether the decoder returns colours multiplied by alpha."""
    transparent_gray: int | None = None
    """The transparent level of a grayscale PNG without an alpha channel."""
    rewritten: bool = False
    """Whether decoders get other bytes than the file's; see `inspection.encoded`."""
    isolated: bool = False
    """Whether only the gateway's decoders may open it, since its cost or its pixels elsewhere are not known."""
    by_pillow: bool = False
    """Whether OpenCV would decode it wrong. Pillow also decodes images that OpenCV cannot open."""
    coefficient_bytes: int = 0
    """Memory for the coefficients of a JPEG in several scans, beside its pixels."""
    scans: int = 1
    """Upper bound of a JPEG's scans."""
    animated: bool = False
    """Whether there may be further frames."""


def upright(stored_width: int, stored_height: int, orientation: int) -> tuple[int, int]:
    """Width and height of the upright image; orientations 5 to 8 rotate by 90 degrees."""
    return (stored_height, stored_width) if orientation >= 5 else (stored_width, stored_height)
