"""The frames of a video, by OpenCV's FFmpeg."""

import math
import os
from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from gateway.errors import UndecodableImage, UnsupportedFormat
from gateway_decoder.choice import MOST_IN_FILE
from gateway_decoder.opencv import cv2

# Read whenever a file is opened. FFmpeg's other formats include lists of further files and addresses to be read.
os.environ["OPENCV_FFMPEG_CAPTURE_OPTIONS"] = "protocol_whitelist;file|format_whitelist;mov,matroska,webm,avi"
_CODECS = {
    "AV1": ("av01", "av1"),
    "H.264": ("avc1", "avc3", "h264", "x264"),
    "HEVC": ("hev1", "hevc", "hvc1", "h265"),
    "Motion JPEG": ("jpeg", "mjpg"),
    "MPEG-4": ("divx", "dx50", "fmp4", "mp4v", "xvid"),
    "VP8": ("vp08", "vp80", "vp8"),
    "VP9": ("vp09", "vp90", "vp9"),
}
"""Supported codecs and their names in containers: of FFmpeg's hundred decoders, those that are fuzzed continuously."""
_NAMED = frozenset(name for names in _CODECS.values() for name in names)
_LEAST_SHARE = 0.9
"""The share of the frames announced by the container that must come, since some containers only estimate. With fewer,
the file is cut off."""


class Video:
    """An open video, before its first frame; raises UndecodableImage or UnsupportedFormat."""

    def __init__(self, data: bytes) -> None:
        self._file = os.memfd_create("video")
        with os.fdopen(os.dup(self._file), "wb") as file:
            file.write(data)
        self._open()
        codec = int(self._video.get(cv2.CAP_PROP_FOURCC)).to_bytes(4, "little").decode("latin-1")
        if codec.strip("\0 ").lower() not in _NAMED:
            raise UnsupportedFormat(f"The video's codec is not supported; use {', '.join(_CODECS)}.")
        self.width, self.height = (
            int(self._video.get(side)) for side in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT)
        )
        announced, rate = self._video.get(cv2.CAP_PROP_FRAME_COUNT), self._video.get(cv2.CAP_PROP_FPS)
        self.total: int | None = min(int(announced), MOST_IN_FILE + 1) if 0 < announced < math.inf else None
        """Number of frames by its container; None if the container does not contain it."""
        self._rate = rate if 0 < rate < 1e6 else 25.0

    def count(self) -> Iterator[None]:
        """Count the frames by reading the file once; for containers without a number of frames."""
        number = 0
        while number <= MOST_IN_FILE and self._video.grab():
            number += 1
            yield
        self.total = max(number, 1)
        self._video.release()
        self._open()

    def walk(self) -> Iterator[tuple[int, float]]:
        """Go to each frame in turn, and yield its number and time in seconds; raises UndecodableImage."""
        index, before = 0, -1.0
        first = 0.0
        while self._video.grab():
            seconds = self._video.get(cv2.CAP_PROP_POS_MSEC) / 1e3
            if index == 0:
                first = seconds if math.isfinite(seconds) else 0.0
            seconds -= first
            if not before < seconds < math.inf:
                seconds = index / self._rate if index / self._rate > before else before
            yield index, seconds
            index, before = index + 1, seconds
        if index < (self.total or 1) * _LEAST_SHARE:
            raise UndecodableImage(
                f"The video ends after {index} of {self.total or 1} frames: it is cut off or damaged."
            )

    def pixels(self) -> NDArray[Any]:
        """The current frame of `walk`, uint8 RGB [height, width, 3], upright."""
        decoded, pixels = self._video.retrieve()
        if not decoded or pixels.shape != (self.height, self.width, 3):
            raise UndecodableImage("A frame cannot be decoded, or does not have the video's size.")
        return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)

    def _open(self) -> None:
        one_thread = [cv2.CAP_PROP_N_THREADS, 1]
        self._video = cv2.VideoCapture(f"/proc/self/fd/{self._file}", cv2.CAP_FFMPEG, one_thread)
        if not self._video.isOpened():
            raise UndecodableImage("The video cannot be opened: it is cut off or damaged.")

    def __del__(self) -> None:
        os.close(self._file)
