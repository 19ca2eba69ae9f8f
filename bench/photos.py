"""The photographs of the requests."""

import io
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from PIL import Image

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp"})


class NoPhotos(Exception):
    """The folder has no photograph; the message is for users."""


@dataclass(frozen=True, slots=True)
class Photo:
    """One encoded image and the label that the model must give it."""

    name: str
    data: bytes
    label: str = ""


def load(folder: Path | None) -> list[Photo]:
    """The photographs of a folder, by name, or the default one; raises NoPhotos."""
    if folder is None:
        return [coffee()]
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise NoPhotos(f"{folder} has no {', '.join(sorted(SUFFIXES))} files")
    return [Photo(path.name, path.read_bytes()) for path in paths]


@cache
def coffee() -> Photo:
    """A cup of espresso, 600 × 400 pixels, 105 kB of JPEG, from scikit-image's wheel."""
    import cv2
    import skimage.data

    pixels = cv2.cvtColor(skimage.data.coffee(), cv2.COLOR_RGB2BGR)
    _, data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 95])
    return Photo("coffee.jpg", data.tobytes())


@cache
def enlarged(photo: Photo, width: int, height: int) -> Photo:
    """The same image with more pixels, as a camera's JPEG: 12 megapixels have about 0.9 MB."""
    image = Image.open(io.BytesIO(photo.data)).resize((width, height), Image.Resampling.BICUBIC)
    return Photo(f"{width}x{height}-{photo.name}", as_jpeg(image, quality=85))


def as_jpeg(image: Image.Image, **options: object) -> bytes:
    """An image as a JPEG file, with options of Pillow's writer."""
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


def unlike_any(jpeg: bytes) -> bytes:
    """The same image in bytes that no cache has seen: with a unique comment (COM, ITU-T T.81, B.2.4.5)."""
    comment = uuid.uuid4().bytes
    return jpeg[:2] + b"\xff\xfe" + (2 + len(comment)).to_bytes(2, "big") + comment + jpeg[2:]
