"""The requested frames of an animated image."""

import time
from dataclasses import dataclass

from gateway.decoder.decoding import Ppm, finished, known
from gateway.decoder.pillow import Animation
from gateway.errors import TooManyFrames, UndecodableImage
from gateway.ingest.frames import MOST_IN_FILE, FrameSelection
from gateway.ingest.image_formats import Header, Size

SLICE_SECONDS = 0.02
"""How long unwanted frames are skipped before the process takes another job."""


@dataclass(frozen=True, slots=True)
class DecodedFrame:
    """One frame: its number in the file, its time in seconds from the first one, and its pixels."""

    index: int
    seconds: float
    image: Ppm
    is_last: bool
    """Whether it is the last wanted frame."""


class OpenedAnimation:
    """An inspected file whose frames are wanted; `step` decodes them in their order, from number `first` on.

    Raises TooManyFrames if more frames exist or are wanted than are allowed, UnsupportedFormat and UndecodableImage.
    """

    def __init__(self, data: bytes, info: Header, size: Size, wanted: FrameSelection, first: int = 0) -> None:
        self._info = known(data, info)
        self._source = Animation(data, self._info)
        self._size, self._wanted, self._first = size, wanted, first
        self._check()
        count = wanted.number_of(self._source.total)
        self._last = (count - 1) * self._source.total // count
        """Number of the last wanted frame."""
        self._walk = self._source.walk()

    def step(self) -> DecodedFrame | None:
        """The next wanted frame; None if SLICE_SECONDS have passed before it."""
        ends = time.process_time() + SLICE_SECONDS
        for index, seconds in self._walk:
            if index >= self._first and self._wanted.takes(index, self._source.total):
                image = finished(self._source.pixels(), self._info, self._size)
                return DecodedFrame(index, seconds, image, index == self._last)
            if time.process_time() > ends:
                return None
        raise UndecodableImage  # it was asked for more than it has

    def _check(self) -> None:
        total = self._source.total
        if total > MOST_IN_FILE:
            raise TooManyFrames(f"The file has more than {MOST_IN_FILE:,} frames: send a part of it.")
        if self._wanted.number_of(total) > self._wanted.most:
            raise _too_many(total, self._wanted)


def _too_many(total: int, wanted: FrameSelection) -> TooManyFrames:
    return TooManyFrames(
        f"The file has {total:,} frames, and {wanted.most:,} more are allowed in this request: ask for some of "
        f"them, such as frames=10.",
        limit="max_frames",
        value=wanted.most,
    )
