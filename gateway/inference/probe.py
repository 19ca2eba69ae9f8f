"""A tiny random image that probes a model."""

import os

from gateway.inference.backend import Batch

SIDE = 8


def probe() -> Batch:
    """One image of random pixels, 8 × 8, as PPM; no two are alike, so that no cache can answer in the model's place."""
    image = b"P6\n%d %d\n255\n" % (SIDE, SIDE) + os.urandom(SIDE * SIDE * 3)
    return Batch([image])
