"""What an upload is, by its bytes alone: never by its name or Content-Type, and without decoding it."""

from collections.abc import Callable

from gateway.errors import EmptyFile, ImageTooLarge, InvalidImage, UnsupportedFormat
from gateway.ingest.formats import avif, bmp, gif, heic, jpeg, jpeg2000, png, tiff, video_container, webp
from gateway.ingest.image_info import ImageFormat, ImageInfo
from gateway.ingest.upload_limits import Limits

_ABSENT = {ImageFormat.VIDEO} if heic.AVAILABLE else {ImageFormat.VIDEO, ImageFormat.HEIC}
_NAMES = [form.value for form in ImageFormat if form not in _ABSENT]
TAKEN = f"{', '.join(_NAMES[:-1])} or {_NAMES[-1]}"

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


def inspect(data: bytes, limits: Limits) -> ImageInfo:
    """Read the header, hold it to the limits and check that the file is whole.

    Costs microseconds, whatever the picture's size, and holds nothing. Raises EmptyFile, UnsupportedFormat,
    InvalidImage, TruncatedImage or ImageTooLarge.
    """
    if not data:
        raise EmptyFile
    info = _reader(data)(data)
    check_size(info, limits)
    return info


def inspect_frames(data: bytes, limits: Limits) -> ImageInfo:
    """`inspect`, for whom frames are asked of: of a video no more is known than that it is one."""
    try:
        return inspect(data, limits)
    except UnsupportedFormat:
        if not video_container.is_video(data):
            raise
    return ImageInfo(ImageFormat.VIDEO, 0, 0, animated=True)


def _reader(data: bytes) -> Callable[[bytes], ImageInfo]:
    if data.startswith(jpeg.SIGNATURE):
        return jpeg.read_jpeg
    if data.startswith(png.SIGNATURE):
        return png.read_png
    if webp.is_webp(data):
        return webp.read_webp
    if data.startswith(gif.SIGNATURES):
        return gif.read_gif
    if data.startswith(tiff.SIGNATURES):
        return tiff.read_tiff
    if avif.is_avif(data):
        return avif.read_avif
    if heic.is_heic(data):
        return heic.read_heic
    if data.startswith(jpeg2000.SIGNATURES):
        return jpeg2000.read_jpeg2000
    if bmp.is_bmp(data):
        return bmp.read_bmp
    if bmp.is_dib(data):
        return bmp.read_dib
    if video_container.is_video(data):
        raise UnsupportedFormat("The file is a video: ask for frames of it, such as frames=10 or frames=every:1s.")
    raise UnsupportedFormat(f"{_guess(data)}not a {TAKEN} image.")


def _guess(data: bytes) -> str:
    for signature, name in _OTHERS.items():
        if data.startswith(signature):
            return f"The file is {name}, "
    return "The file is "


def check_size(info: ImageInfo, limits: Limits) -> None:
    """Raise InvalidImage or ImageTooLarge where width and height are not what is allowed."""
    width, height = info.width, info.height
    if width < 1 or height < 1:
        raise InvalidImage("The image has no width or no height.")
    if max(width, height) > limits.max_image_side:
        value = limits.max_image_side
        raise ImageTooLarge(
            f"The image is {width} × {height} pixels; a side may have {value}.", limit="max_image_side", value=value
        )
    if width * height > limits.max_image_pixels:
        value = limits.max_image_pixels
        raise ImageTooLarge(
            f"The image has {width * height} pixels; {value} are allowed.", limit="max_image_pixels", value=value
        )
