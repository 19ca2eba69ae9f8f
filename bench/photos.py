"""The photographs of the requests."""

import io
import uuid
from dataclasses import dataclass
from functools import cache

from PIL import Image


@dataclass(frozen=True, slots=True)
class Photo:
    """One encoded image and the label that the model must give it."""

    name: str
    data: bytes
    label: str = ""


@cache
def coffee() -> Photo:
    """A cup of espresso, 600 × 400 pixels, 105 kB of JPEG, from scikit-image's wheel."""
    import cv2
    import skimage.data

    pixels = cv2.cvtColor(skimage.data.coffee(), cv2.COLOR_RGB2BGR)
    _, data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 95])
    return Photo("coffee.jpg", data.tobytes())


@cache
def resized(photo: Photo, width: int, height: int, quality: int) -> Photo:
    """The same image with another number of pixels."""
    image = Image.open(io.BytesIO(photo.data)).resize((width, height), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Photo(f"{width}x{height}-{quality}.jpg", file.getvalue())


def unlike_any(jpeg: bytes) -> bytes:
    """The same image in bytes that no cache has seen: with a unique comment (COM, ITU-T T.81, B.2.4.5)."""
    comment = uuid.uuid4().bytes
    return jpeg[:2] + b"\xff\xfe" + (2 + len(comment)).to_bytes(2, "big") + comment + jpeg[2:]
