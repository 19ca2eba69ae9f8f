"""The requested frames of an animated image."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.decoder.decoding import Ppm, finished, known
from gateway.decoder.pillow import Animation
from gateway.errors import TooManyFrames
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


class OpenedAnimation:
    """An inspected file whose frames are wanted; `step` decodes them in their order, from number `first` on.

    Raises TooManyFrames if more frames exist or are wanted than are allowed, UnsupportedFormat and UndecodableImage.
    """

    def __init__(self, data: bytes, info: Header, size: Size, wanted: FrameSelection, first: int = 0) -> None:
        self._info = known(data, info)
        self._source = Animation(data, self._info)
        self._size, self._wanted, self._first = size, wanted, first
        self._given = 0
        self._check()
        self._walk = self._frames()
        self._found: tuple[int, float] | None = None
        """Number and time of the wanted frame at which the file is; None once it has been decoded."""

    def find(self) -> bool | None:
        """Move to the next wanted frame; None if SLICE_SECONDS have passed before it, False if there is none."""
        if self._found is not None:
            return True
        ends = time.process_time() + SLICE_SECONDS
        for found in self._walk:
            if found is not None:
                self._found = found
                return True
            if time.process_time() > ends:
                return None
        return False

    def step(self) -> DecodedFrame | bool:
        """The next wanted frame; True if SLICE_SECONDS have passed before it, False if there is none."""
        found = self.find()
        if self._found is None:
            return found is None
        (index, seconds), self._found = self._found, None
        return DecodedFrame(index, seconds, finished(self._source.pixels(), self._info, self._size))

    def _frames(self) -> Iterator[tuple[int, float] | None]:
        """Number and time of each wanted frame, and None for each frame that is skipped."""
        source, wanted = self._source, self._wanted
        for index, seconds in source.walk():
            if not wanted.takes(index, source.total):
                yield None
                continue
            if self._given == wanted.most:
                raise _too_many(source.total, wanted)
            self._given += 1
            if index < self._first:
                yield None
            else:
                yield index, seconds
            if self._given == wanted.count:
                return

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
