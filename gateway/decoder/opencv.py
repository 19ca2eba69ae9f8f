"""The only module that imports OpenCV; configures it for a server."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

# OpenCV reads this once, when it is loaded. It is a second check, for the largest `max_image_pixels` that can be set:
# the limits of a request are checked before OpenCV gets a byte.
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", "1000000000")

import cv2

# Several processes decode at once; threads inside OpenCV would only compete for the same cores.
cv2.setNumThreads(1)
# Faults of an image are reported in the response, not in the log.
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)

__all__ = ["cv2", "on_white"]

_STRIP_PIXELS = 1_000_000


def on_white(height: int, width: int, rgba: Callable[[int, int], NDArray[Any]]) -> NDArray[np.uint8]:
    """An image with alpha on white, uint8 [height, width, 3]; `rgba` returns its rows from one number to another.

    It takes the rows strip by strip, so that two more images need not fit into the memory.
    """
    pixels = np.empty((height, width, 3), np.uint8)
    rows = max(_STRIP_PIXELS // width, 1)
    for top in range(0, height, rows):
        strip = rgba(top, min(top + rows, height))
        opacity = cv2.cvtColor(cv2.extractChannel(strip, 3), cv2.COLOR_GRAY2RGB)
        colours = cv2.cvtColor(strip, cv2.COLOR_RGBA2RGB)
        pixels[top : top + rows] = cv2.add(cv2.multiply(colours, opacity, scale=1 / 255), cv2.bitwise_not(opacity))
    return pixels
