"""JPEG 2000: a codestream (ITU-T T.800), bare or in the boxes of JP2 (its annex I)."""

import struct
from dataclasses import replace

from gateway.errors import InvalidImage, TruncatedImage, UnsupportedFormat
from gateway.ingest.formats.step_limit import Steps
from gateway.ingest.image_info import ImageFormat, ImageInfo

_BOXES = b"\0\0\0\x0cjP  \r\n\x87\n"
_CODESTREAM = b"\xff\x4f\xff\x51"
SIGNATURES = (_BOXES, _CODESTREAM)
_END = b"\xff\xd9"
_OPACITY = (1, 2)
_MOST_TILES = 10_000
_MOST_COMPONENTS = 4
_MOST_BITS = 16


def read_jpeg2000(data: bytes) -> ImageInfo:
    """Gray or RGB of up to 16 bits, with or without opacity."""
    try:
        if data.startswith(_CODESTREAM):
            return _read_codestream(data, 0, len(data))
        return _read_boxes(data)
    except (struct.error, IndexError) as exc:
        raise TruncatedImage("The JPEG 2000 file is cut off in its header.") from exc


def _read_boxes(data: bytes) -> ImageInfo:
    steps, position, transparent = Steps("JPEG 2000 file"), len(_BOXES), False
    while position + 8 <= len(data):
        steps.take()
        size, kind = struct.unpack_from(">I4s", data, position)
        start = position + 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", data, start)
            start += 8
        end = position + size if size else len(data)
        if end < start:
            raise InvalidImage("The JPEG 2000 file has a box of an impossible size.")
        if end > len(data):
            raise TruncatedImage("The JPEG 2000 file is cut off: a box reaches beyond its end.")
        if kind == b"jp2h":
            transparent = _is_transparent(data, start, end, steps)
        if kind == b"jp2c":
            info = _read_codestream(data, start, end)
            return replace(info, has_alpha=info.has_alpha or transparent)
        position = end
    raise TruncatedImage("The JPEG 2000 file is cut off: it has no picture.")


def _is_transparent(data: bytes, position: int, end: int, steps: Steps) -> bool:
    """Whether a channel of the picture is its opacity (cdef, section I.5.3.6)."""
    while position + 8 <= end:
        steps.take()
        size, kind = struct.unpack_from(">I4s", data, position)
        if size < 8:
            return False
        if kind == b"cdef":
            entries = data[position + 10 : min(position + size, end)]
            steps.take(len(entries) // 6)
            return any(
                int.from_bytes(entries[at + 2 : at + 4], "big") in _OPACITY for at in range(0, len(entries) - 5, 6)
            )
        position += size
    return False


def _read_codestream(data: bytes, start: int, end: int) -> ImageInfo:
    """The size out of the first marker segment (section A.5.1)."""
    if data[start : start + 4] != _CODESTREAM:
        raise InvalidImage("The JPEG 2000 file's picture does not begin with its size.")
    right, bottom, left, top, tile_width, tile_height, tile_left, tile_top, components = struct.unpack_from(
        ">8IH", data, start + 8
    )
    channels = [
        tuple(data[at : at + 3]) for at in range(start + 42, start + 42 + 3 * min(components, _MOST_COMPONENTS), 3)
    ]
    if end - start < 44 + 3 * components:
        raise TruncatedImage("The JPEG 2000 file is cut off in its header.")
    if right <= left or bottom <= top or not tile_width or not tile_height or not components:
        raise InvalidImage("The JPEG 2000 image has no width, no height or no channels.")
    if components > _MOST_COMPONENTS:
        raise UnsupportedFormat(
            f"JPEG 2000 images of {components} channels are not supported: at most {_MOST_COMPONENTS} are."
        )
    bits = max(channel[0] for channel in channels)
    if bits & 0x80 or bits >= _MOST_BITS:
        raise UnsupportedFormat("JPEG 2000 images of signed samples or more than 16 bits are not supported.")
    if any(channel[1:] != (1, 1) for channel in channels[:1]):
        raise UnsupportedFormat("JPEG 2000 images whose first channel is subsampled are not supported.")
    tiles = -(-(right - tile_left) // tile_width) * -(-(bottom - tile_top) // tile_height)
    if tiles > _MOST_TILES:
        raise InvalidImage(f"The JPEG 2000 image has {tiles} tiles; at most {_MOST_TILES} are supported.")
    if data[end - 2 : end] != _END and _END not in data[max(start, end - 64) : end]:
        raise TruncatedImage("The JPEG 2000 file is cut off: the end of its picture is missing.")
    return ImageInfo(
        ImageFormat.JPEG_2000,
        right - left,
        bottom - top,
        bit_depth=bits + 1,
        has_alpha=components in (2, 4),
        by_pillow=True,
    )
