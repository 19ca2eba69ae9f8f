"""The requested frames of an animated image."""

import time
import warnings
from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from gateway.decoder.decoding import finished
from gateway.decoder.jobs import Made, as_wanted
from gateway.decoder.pillow import check_size, opened, refusals, rgb
from gateway.errors import TooManyFrames, UndecodableImage
from gateway.ingest.image_formats import Header, ImageFormat, Size
from gateway.plugins.media.frame_selection import MOST_IN_FILE, FrameSelection

SLICE_SECONDS = 0.02
"""How long unwanted frames are skipped before the process takes another job."""
_DEFAULT_SECONDS = 0.1
"""Duration of a frame whose file says 0, as in browsers."""


class OpenAnimation(Iterator[Made]):
    """An inspected file whose frames are wanted: decodes them in their order, from number `first` on.

    A result has the frame's number in the file, its time in seconds from the first one, and its pixels; or nothing, if
    SLICE_SECONDS have passed before the next wanted frame.

    Raises TooManyFrames if more frames exist or are wanted than are allowed, UnsupportedFormat and UndecodableImage.
    """

    def __init__(self, data: NDArray[Any], info: Header, size: Size, wanted: FrameSelection, first: int = 0) -> None:
        self._info = info
        self._source = Animation(data.tobytes(), info)  # a copy: the frames overwrite the file's memory
        self._size, self._wanted, self._first = size, wanted, first
        self._check()
        count = wanted.number_of(self._source.total)
        self._last = (count - 1) * self._source.total // count
        """Number of the last wanted frame."""
        self._walk = self._source.walk()

    def __next__(self) -> Made:
        ends = time.process_time() + SLICE_SECONDS
        for index, seconds in self._walk:
            if index >= self._first and self._wanted.takes(index, self._source.total):
                image = as_wanted(finished(self._source.pixels(), self._info, self._size), self._size)
                return Made({"frame": index, "shown_seconds": seconds}, image, is_last=index == self._last)
            if time.process_time() > ends:
                return Made()
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


class Animation:
    """An open animated image, before its first frame; raises UndecodableImage."""

    def __init__(self, data: bytes, info: Header) -> None:
        self._info = info
        with refusals(info.format):
            self._image: Any = opened(data, info.format, whole=True)
            check_size(self._image, info)
            is_gif = info.format is ImageFormat.GIF
            count = count_gif_frames(data, MOST_IN_FILE) if is_gif else getattr(self._image, "n_frames", 1)
        self.total: int = max(count, 1)
        """Number of frames, by its header."""

    def walk(self) -> Iterator[tuple[int, float]]:
        """Seek each frame in order, and yield its number and time in seconds; raises UndecodableImage."""
        seconds = 0.0
        for index in range(self.total):
            try:
                with warnings.catch_warnings(action="ignore"):
                    self._image.seek(index)
                    # A frame may reach beyond the screen, which grows then.
                    check_size(self._image, self._info)
                    self._image.load()
            except (MemoryError, UndecodableImage):
                raise
            except Exception as exc:  # plugins raise many types for hostile bytes
                raise UndecodableImage(f"Frame {index} of {self.total} cannot be decoded.") from exc
            shown = self._image.info.get("duration")
            yield index, seconds
            seconds += shown / 1e3 if isinstance(shown, int | float) and 0 < shown < 1e9 else _DEFAULT_SECONDS

    def pixels(self) -> NDArray[Any]:
        """The current frame of `walk`, uint8 RGB [height, width, 3]."""
        with warnings.catch_warnings(action="ignore"):
            return rgb(self._image)


def count_gif_frames(data: bytes, most: int) -> int:
    """The number of frames of a GIF, at most `most` + 1. Pillow would need seconds to count a million."""
    position, count = 13 + _palette_bytes(data[10]), 0
    while position < len(data) and count <= most:
        kind, position = data[position], position + 1
        if kind == 0x3B:  # trailer
            break
        if kind == 0x21:  # extension
            position = _after_blocks(data, position + 1)
        elif kind == 0x2C and position + 9 < len(data):  # image
            count += 1
            # The size of the first codes follows the descriptor and its palette.
            position = _after_blocks(data, position + 10 + _palette_bytes(data[position + 8]))
    return count


def _palette_bytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _after_blocks(data: bytes, position: int) -> int:
    """The position after a chain of blocks, each with its length before it and the last one empty."""
    while position < len(data) and (length := data[position]):
        position += length + 1
    return position + 1
