"""Recognises the format of an upload by its bytes, never by its name or Content-Type, and reads its header."""

from gateway.errors import EmptyFile, ImageTooLarge, InvalidImage, UnsupportedFormat
from gateway.ingest.formats.bmp import read_bmp
from gateway.ingest.formats.jpeg import read_jpeg
from gateway.ingest.formats.png import read_png
from gateway.ingest.formats.webp import read_webp
from gateway.ingest.image_formats import ImageFormat, accepted_formats, recognize
from gateway.ingest.image_info import ImageInfo, Unopened
from gateway.ingest.upload import Limits
from gateway.values.quantities import pixels_beyond

_READERS = {
    ImageFormat.JPEG: read_jpeg,
    ImageFormat.PNG: read_png,
    ImageFormat.WEBP: read_webp,
    ImageFormat.BMP: read_bmp,
}
"""For the formats that may be passed on; a decoder's process reads the headers of the others."""

_OTHERS = {
    b"%PDF-": "PDF",
    b"\xff\x0a": "JPEG XL",
    b"\0\0\0\x0cJXL ": "JPEG XL",
    b"\0\0\0\x10ftypmif3": "HEIF with a minimized header",
    b"8BPS": "Photoshop",
    b"\0\0\1\0": "icon",
    b"PK\3\4": "ZIP",
    b"\x1f\x8b": "gzip",
    b"<svg": "SVG",
    b"<?xml": "XML",
    b"<!DOCTYPE html": "HTML",
    b"<html": "HTML",
}


def inspect(data: bytes, limits: Limits, *, frames: bool = False) -> ImageInfo | Unopened:
    """Recognise the format; if the serving process reads its header, also check size and ending.

    It takes microseconds, whatever the size of the image. A video is accepted only if `frames` are requested. Raises
    EmptyFile, UnsupportedFormat, InvalidImage, TruncatedImage or ImageTooLarge.
    """
    if not data:
        raise EmptyFile
    image_format = recognize(data)
    if image_format is None:
        raise UnsupportedFormat(f"{_guess(data)}not a {accepted_formats()} image.")
    if image_format is ImageFormat.VIDEO and not frames:
        raise UnsupportedFormat("The file is a video: ask for frames of it, such as frames=10 or frames=every:1s.")
    read = _READERS.get(image_format)
    if read is not None:
        info = read(data)
        check_size(info, limits)
        return info
    if not image_format.available:
        name, package = image_format.value, image_format.traits.package.replace("_", "-")
        raise UnsupportedFormat(
            f"This service does not decode {name}: send JPEG, or ask its operator to install {package} "
            f"(the extra {name.lower()}; `make up EXTRAS={name.lower()}`)."
        )
    return Unopened(image_format)


def _guess(data: bytes) -> str:
    for signature, name in _OTHERS.items():
        if data.startswith(signature):
            return f"The file is {name}, "
    return "The file is "


def check_size(info: ImageInfo, limits: Limits) -> None:
    """Raise InvalidImage or ImageTooLarge if width and height are not within the limits."""
    width, height = info.width, info.height
    if width < 1 or height < 1:
        raise InvalidImage("The image has no width or no height.")
    if max(width, height) > limits.max_image_side:
        value = limits.max_image_side
        raise ImageTooLarge(
            f"The image is {width} × {height} pixels; a side may have at most {value:,}: scale it down.",
            limit="max_image_side",
            value=value,
        )
    if width * height > limits.max_image_pixels:
        value = limits.max_image_pixels
        size, most = pixels_beyond(width * height, value)
        raise ImageTooLarge(
            f"The image has {size} ({width} × {height}); at most {most} are allowed: scale it down.",
            limit="max_image_pixels",
            value=value,
        )
