"""A tiny image made in code, to ask a model for a sign of life."""

import os

import numpy as np

from gateway.inference.backend import Batch

SIDE = 8


def probe() -> Batch:
    """One image of random pixels, 8 × 8, as PPM; no two are alike, so that no cache can answer in the model's place."""
    image = b"P6\n%d %d\n255\n" % (SIDE, SIDE) + os.urandom(SIDE * SIDE * 3)
    return Batch(
        raw_image=np.frombuffer(image, np.uint8).reshape(1, -1), raw_image_length=np.array([[len(image)]], np.int32)
    )
