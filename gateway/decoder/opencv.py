"""The only module that imports OpenCV; configures it for a server."""

import os

# OpenCV reads this once, when it is loaded. It is a second check, for the largest `max_image_pixels` that can be set:
# the limits of a request are checked before OpenCV gets a byte.
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", "1000000000")

import cv2

# Several processes decode at once; threads inside OpenCV would only compete for the same cores.
cv2.setNumThreads(1)
# Faults of an image are reported in the response, not in the log.
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)

__all__ = ["cv2"]
