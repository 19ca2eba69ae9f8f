"""GIF 87a and 89a, of which the first frame counts."""

from gateway.errors import InvalidImage, TruncatedImage
from gateway.ingest.image_info import ImageFormat, ImageInfo

SIGNATURES = (b"GIF87a", b"GIF89a")
_TRAILER = b";"
_COLOURS_FLAG = 0x80


def read_gif(data: bytes) -> ImageInfo:
    """The logical screen; whether its first frame covers all of it shows when it is decoded."""
    if len(data) < 14:
        raise TruncatedImage("The GIF is cut off in its header.")
    width, height = int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    if not width or not height:
        raise InvalidImage("The GIF has no width or no height.")
    # Some writers pad with zeros.
    if not data.endswith(_TRAILER) and not data.rstrip(b"\0").endswith(_TRAILER):
        raise TruncatedImage("The GIF is cut off: it has no trailer.")
    # Without colours for all frames, OpenCV shows some pixels in colours of its own.
    by_pillow = not data[10] & _COLOURS_FLAG
    return ImageInfo(ImageFormat.GIF, width, height, has_alpha=True, by_pillow=by_pillow)
