"""JPEGs with flipped bits: baseline, progressive and with restart markers; whether Pillow and the service notice."""

import io
import random
import warnings
from collections.abc import Callable

import numpy as np
from PIL import Image

from gateway.decoder.damage import DamageDetector
from gateway.decoder.opencv import cv2
from tests.photos import PHOTOS, pixels

KINDS = {
    "baseline": [],
    "progressive": [cv2.IMWRITE_JPEG_PROGRESSIVE, 1],
    "restart markers": [cv2.IMWRITE_JPEG_RST_INTERVAL, 5],
}
FLIPS = (1, 1, 3, 10)
SIZE = (256, 192)


def jpegs(count: int, kind: str, generator: random.Random) -> list[bytes]:
    """Sound JPEGs of photographs."""
    pictures = [cv2.cvtColor(np.asarray(pixels(name).resize(SIZE)), cv2.COLOR_RGB2BGR) for name in PHOTOS]
    options = [*KINDS[kind], cv2.IMWRITE_JPEG_QUALITY]
    return [
        cv2.imencode(".jpg", pictures[number % len(pictures)], [*options, generator.choice([75, 90, 95])])[1].tobytes()
        for number in range(count)
    ]


def damaged(data: bytes, generator: random.Random) -> bytes:
    """Flip up to ten bits of the compressed data."""
    flipped = bytearray(data)
    for _ in range(generator.choice(FLIPS)):
        flipped[generator.randrange(data.find(b"\xff\xda") + 14, len(data) - 2)] ^= 1 << generator.randrange(8)
    return bytes(flipped)


def refused_by_pillow(data: bytes) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(data)) as image:
            image.load()
    except (OSError, SyntaxError):
        return True
    return False


def outcome(detector: DamageDetector) -> Callable[[bytes], str]:
    """The service's result for an image: refused, marked or not noticed."""

    def of(data: bytes) -> str:
        with detector:
            decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
        return "refused" if decoded is None else "marked" if detector.damaged else "not noticed"

    return of
