"""Frames of a video file, a camera or a network stream, as JPEGs with their times."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import UserError

STDIN = "-"
JPEG_QUALITY = 90
_LIVE = ("rtsp://", "rtsps://", "http://", "https://", "udp://", "rtmp://")
_DEFAULT_FPS = 25.0
_MAX_FPS = 1_000.0


class VideoUnreadable(UserError):
    """The source cannot be opened or has no frames; the message names it and what to do."""


@dataclass(frozen=True, slots=True)
class VideoFrame:
    """One frame as a JPEG, and its time in seconds since the first frame."""

    seconds: float
    jpeg: bytes


def is_live(source: str) -> bool:
    """Whether a source is a camera or a network stream, of which frames are dropped if they arrive too fast."""
    return source.isdecimal() or source.lower().startswith(_LIVE)


def frames(source: str, fps: float | None = None) -> Iterator[VideoFrame]:
    """Yield the frames of a file, a camera (its number), a URL or - for standard input, at most `fps` per second.

    Raises VideoUnreadable. OpenCV decodes the video in this process, since it is the caller's own.
    """
    os.environ.setdefault("OPENCV_LOG_LEVEL", "ERROR")  # read at import; warnings would mix with the labels
    import cv2

    if source != source.encode(errors="replace").decode():  # OpenCV would crash
        raise VideoUnreadable(f"the name {source!r} is not UTF-8: rename the file")
    target = int(source) if source.isdecimal() else "/dev/stdin" if source == STDIN else source
    video = cv2.VideoCapture(target)
    try:
        if not video.isOpened():
            is_path = source != STDIN and not is_live(source) and "://" not in source
            fault = "does not exist" if is_path and not Path(source).exists() else "cannot be read as a video"
            raise VideoUnreadable(
                f"{source!r} {fault}: give a file, the number of a camera, an rtsp:// address, or - for standard input"
            )
        declared = video.get(cv2.CAP_PROP_FPS)
        rate = declared if 0 < declared <= _MAX_FPS else _DEFAULT_FPS
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
