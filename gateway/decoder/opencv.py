"""The one place that loads OpenCV, set up for a server."""

import os

# OpenCV reads this once, when it is loaded; the limits of a request are held before it sees a byte, this is the second
# wall: what the largest `max_image_pixels` allows, and no more.
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", "1000000000")

import cv2

# Images are decoded in threads of the caller's; a second pool inside would only fight for the same cores.
cv2.setNumThreads(1)
# What a decoder has to say of a client's bytes is in the answer to the client.
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)

__all__ = ["cv2"]
