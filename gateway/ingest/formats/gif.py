"""GIF 87a and 89a, of which the first frame counts."""

from gateway.errors import InvalidImage, TruncatedImage
from gateway.ingest.image_info import ImageFormat, ImageInfo

SIGNATURES = (b"GIF87a", b"GIF89a")
_TRAILER = b";"


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
    # OpenCV has views of its own about what is transparent, and about frames without colours.
    return ImageInfo(ImageFormat.GIF, width, height, has_alpha=True, by_pillow=True)
