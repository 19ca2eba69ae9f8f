"""The frames of a video file, a camera or a network stream, as JPEGs, and when each was."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import UserError

STDIN = "-"
JPEG_QUALITY = 90
_LIVE = ("rtsp://", "rtsps://", "http://", "https://", "udp://", "rtmp://")
_USUAL_FPS = 25.0
_MOST_FPS = 1_000.0


class VideoUnreadable(UserError):
    """The source cannot be opened or has no frames; the message says which and what to try."""


@dataclass(frozen=True, slots=True)
class VideoFrame:
    """One frame: when it is shown, in seconds from the first one, and its picture."""

    seconds: float
    jpeg: bytes


def is_live(source: str) -> bool:
    """Whether frames come at their own time, so that those which come too fast are lost: cameras and addresses."""
    return source.isdecimal() or source.lower().startswith(_LIVE)


def frames(source: str, fps: float | None = None) -> Iterator[VideoFrame]:
    """Read a file, a camera (its number), an address or - for standard input; of a file at most `fps` frames a second.

    Raises VideoUnreadable. The video is the caller's own: OpenCV decodes it in this process.
    """
    os.environ.setdefault("OPENCV_LOG_LEVEL", "ERROR")  # read once; its warnings would stand among the labels
    import cv2

    place = int(source) if source.isdecimal() else "/dev/stdin" if source == STDIN else source
    video = cv2.VideoCapture(place)
    try:
        if not video.isOpened():
            named = source != STDIN and not is_live(source) and "://" not in source
            what = "does not exist" if named and not Path(source).exists() else "cannot be read as a video"
            raise VideoUnreadable(
                f"{source!r} {what}: give a file, the number of a camera, an rtsp:// address, or - for standard input"
            )
        told = video.get(cv2.CAP_PROP_FPS)
        rate = told if 0 < told <= _MOST_FPS else _USUAL_FPS
        live, begun, number, due, read = is_live(source), time.monotonic(), 0, 0.0, 0
        while video.grab():
            seconds = time.monotonic() - begun if live else number / rate
            number += 1
            if fps is not None and seconds + 1e-6 < due:
                continue
            due = max(due + 1 / fps, seconds) if fps is not None and due else seconds + (1 / fps if fps else 0)
            decoded, pixels = video.retrieve()
            if not decoded:
                continue
            encoded, jpeg = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
            if encoded:
                read += 1
                yield VideoFrame(seconds, jpeg.tobytes())
        if not read:
            raise VideoUnreadable(f"{source!r} has no frame that can be decoded")
    finally:
        video.release()
