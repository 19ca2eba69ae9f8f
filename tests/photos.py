"""Photographs from the wheels of scikit-image and scikit-learn."""

import io
import uuid
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from PIL import Image

from tests.encoders import png_chunk

PHOTOS = {
    "cat": ("skimage", "data/chelsea.png"),
    "coffee": ("skimage", "data/coffee.png"),
    "astronaut": ("skimage", "data/astronaut.png"),
    "rocket": ("skimage", "data/rocket.jpg"),
    "motorcycle": ("skimage", "data/motorcycle_left.png"),
    "hubble": ("skimage", "data/hubble_deep_field.jpg"),
    "camera": ("skimage", "data/camera.png"),
    "china": ("sklearn", "datasets/images/china.jpg"),
    "flower": ("sklearn", "datasets/images/flower.jpg"),
}
# Found and not imported: scikit-learn takes a second for that.
ROOTS = {name: Path(find_spec(name).origin).parent for name in ("skimage", "sklearn")}

SAVED_AS = {
    "JPEG": {"quality": 92},
    "PNG": {},
    "WEBP": {"quality": 92},
    "BMP": {},
}
"""Options of Pillow's `save` for each format."""


@cache
def pixels(name: str) -> Image.Image:
    """A photograph, RGB."""
    package, path = PHOTOS[name]
    return Image.open(ROOTS[package] / path).convert("RGB")


@cache
def photo(name: str, image_format: str = "JPEG") -> bytes:
    """A photograph as a file of Pillow's format."""
    file = io.BytesIO()
    pixels(name).save(file, image_format, **SAVED_AS[image_format])
    return file.getvalue()


def unlike_any(jpeg: bytes) -> bytes:
    """The same image in bytes that no cache has seen: the JPEG with a unique comment (marker COM)."""
    comment = uuid.uuid4().bytes
    return jpeg[:2] + b"\xff\xfe" + (2 + len(comment)).to_bytes(2, "big") + comment + jpeg[2:]


def undecodable(number: int = 0) -> bytes:
    """A PNG that is whole by its header and ending, with zeros for image data; each number makes another file."""
    whole = photo("coffee", "PNG")
    middle = png_chunk(b"tEXt", b"number\0%d" % number) + png_chunk(b"IDAT", bytes(1_000))
    return whole[: whole.index(b"IDAT") - 4] + middle + png_chunk(b"IEND", b"")
