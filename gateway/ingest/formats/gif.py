"""GIF 87a and 89a, of which the first frame counts unless others are asked for."""

from gateway.errors import InvalidImage, TruncatedImage
from gateway.ingest.image_info import ImageFormat, ImageInfo

SIGNATURES = (b"GIF87a", b"GIF89a")
_TRAILER = b";"
_EXTENSION, _IMAGE = 0x21, 0x2C


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
    return ImageInfo(ImageFormat.GIF, width, height, has_alpha=True, by_pillow=True, animated=True)


def count_frames(data: bytes, most: int) -> int:
    """The frames of a GIF, or `most` + 1 where it has more; O(n) for n bytes, so for a decoder's process."""
    position, count = 13 + _palette_bytes(data[10]), 0
    while position < len(data) and count <= most:
        kind, position = data[position], position + 1
        if kind == _TRAILER[0]:
            break
        if kind == _EXTENSION:
            position = _behind_blocks(data, position + 1)
        elif kind == _IMAGE and position + 9 < len(data):
            count += 1
            # Behind the descriptor and its palette stands the size of the first codes.
            position = _behind_blocks(data, position + 10 + _palette_bytes(data[position + 8]))
    return count


def _palette_bytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _behind_blocks(data: bytes, position: int) -> int:
    """The position behind a chain of blocks, each with its length before it and the last one empty."""
    while position < len(data) and (length := data[position]):
        position += length + 1
    return position + 1
