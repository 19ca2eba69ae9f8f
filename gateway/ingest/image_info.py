"""What is known of an image before it is decoded."""

from dataclasses import dataclass

from gateway.ingest.image_formats import ImageFormat


@dataclass(frozen=True, slots=True)
class Unopened:
    """A file of a format whose header is read in a decoder's process."""

    format: ImageFormat


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """The header of the first frame or page of an image.

    `width` and `height` are the picture's as it is shown, upright: after `orientation` (EXIF's 1 to 8, 1 = as stored)
    was applied. `bit_depth` is the largest of the channels'. `has_alpha` says that pixels may be transparent,
    `premultiplied` that the decoder gives their colours multiplied by it, and `transparent_gray` is the one level that
    is transparent in a PNG of gray without an alpha channel. `rewritten` says that decoders
    get other bytes of it: `prepare.encoded`. `isolated` says that only the gateway's own decoders may open it,
    since what it costs or shows elsewhere is not known.
    `by_pillow` says that OpenCV would show it wrong; Pillow is asked in any case where OpenCV cannot open a picture.
    `coefficient_bytes` is what a JPEG in several scans keeps in memory beside its pixels, and `scans` how many it has
    at most. `animated` says that there may be frames behind the first one.
    """

    format: ImageFormat
    width: int
    height: int
    orientation: int = 1
    bit_depth: int = 8
    has_alpha: bool = False
    premultiplied: bool = False
    transparent_gray: int | None = None
    rewritten: bool = False
    isolated: bool = False
    by_pillow: bool = False
    coefficient_bytes: int = 0
    scans: int = 1
    animated: bool = False


def upright(stored_width: int, stored_height: int, orientation: int) -> tuple[int, int]:
    """Width and height as shown; orientations 5 to 8 turn the picture by 90 degrees."""
    return (stored_height, stored_width) if orientation >= 5 else (stored_width, stored_height)
