"""The photographs of the requests."""

import uuid
from dataclasses import dataclass
from pathlib import Path

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp"})
JPEG_QUALITY = 95
"""JPEG quality at which the default photograph has 105 kB."""


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


def coffee() -> Photo:
    """A cup of espresso, 600 × 400 pixels, 105 kB of JPEG, from scikit-image's wheel."""
    import cv2
    import skimage.data

    pixels = cv2.cvtColor(skimage.data.coffee(), cv2.COLOR_RGB2BGR)
    _, data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    return Photo("coffee.jpg", data.tobytes())


def enlarged(photo: Photo, width: int, height: int) -> Photo:
    """The same image with more pixels, as a camera's JPEG: 12 megapixels have about 0.9 MB."""
    import cv2
    import numpy as np

    pixels = cv2.imdecode(np.frombuffer(photo.data, np.uint8), cv2.IMREAD_COLOR)
    assert pixels is not None
    larger = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_CUBIC)
    _, data = cv2.imencode(".jpg", larger, [cv2.IMWRITE_JPEG_QUALITY, 85])
    return Photo(f"{width}x{height}-{photo.name}", data.tobytes())


def unlike_any(jpeg: bytes) -> bytes:
    """The same image in bytes that no cache has seen: with a unique comment (COM, ITU-T T.81, B.2.4.5)."""
    comment = uuid.uuid4().bytes
    return jpeg[:2] + b"\xff\xfe" + (2 + len(comment)).to_bytes(2, "big") + comment + jpeg[2:]
