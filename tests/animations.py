"""Animated images, drawn frame by frame."""

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from tests.encoders import png_chunk

FORMATS = ("GIF", "PNG", "WEBP", "AVIF")
"""Pillow's names of the formats that can be animated."""


def shade(level: int, size: tuple[int, int] = (64, 48)) -> Image.Image:
    """A frame of one gray level."""
    return Image.new("RGB", size, (level, level, level))


def animated(
    image_format: str, levels: Sequence[int], *, duration: int | list[int] = 100, size: tuple[int, int] = (64, 48)
) -> bytes:
    """An animated image with one frame per gray level, stored losslessly; each frame is shown for `duration` ms."""
    first, *others = [shade(level, size) for level in levels]
    out = io.BytesIO()
    lossless = {"lossless": True} if image_format == "WEBP" else {}
    first.save(out, image_format, save_all=True, append_images=others, duration=duration, **lossless)
    return out.getvalue()


def level_of(ppm: bytes) -> int:
    """The gray level of a decoded frame."""
    return round(float(np.frombuffer(ppm.split(b"\n255\n", 1)[1], np.uint8).mean()))


def gif_of(frames: int, *, width: int = 1, height: int = 1) -> bytes:
    """A GIF of one-pixel frames, 15 bytes each."""
    screen = b"GIF89a" + width.to_bytes(2, "little") + height.to_bytes(2, "little") + b"\x80\0\0" + bytes(6)
    frame = b"," + bytes(4) + b"\1\0\1\0\0" + b"\2\2\x4c\1\0"
    return screen + frame * frames + b";"


def apng_that_promises(frames: int) -> bytes:
    """An APNG whose header declares `frames` frames and which has fewer."""
    data = animated("PNG", [1, 2])
    place = data.index(b"acTL") - 4
    return data[:place] + png_chunk(b"acTL", frames.to_bytes(4, "big") + bytes(4)) + data[place + 20 :]
