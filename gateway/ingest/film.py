"""The frames of an animated picture, one after the other; for `decoders.child`, whose process may be lost."""

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.errors import TooManyFrames, UndecodableImage
from gateway.ingest import pillow
from gateway.ingest.decoders.budget import Size
from gateway.ingest.decoding import Ppm, finished
from gateway.ingest.formats.gif import count_frames
from gateway.ingest.frames import MOST_IN_FILE, Choice, Wanted
from gateway.ingest.image_info import ImageFormat, ImageInfo

SLICE_SECONDS = 0.02
"""How long frames that nobody wants are passed over before others have their turn."""
_UNTOLD_SECONDS = 0.1
"""How long a frame is shown whose file says 0, as browsers do it."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame: its number in the file, when it is shown, in seconds from the first one, and what it shows."""

    index: int
    seconds: float
    picture: Ppm


class Film:
    """An inspected file whose frames are wanted; `step` decodes them in their order.

    Raises TooManyFrames where it has, or would give, more than are allowed, and UndecodableImage.
    """

    def __init__(self, data: bytes, info: ImageInfo, size: Size, wanted: Wanted) -> None:
        self._info, self._size, self._wanted = info, size, wanted
        with warnings.catch_warnings(action="ignore"):
            self._picture = pillow.opened(data, info)
        self._total = _frames_in(self._picture, data, info)
        self._choice = Choice(wanted, self._total)
        if (wanted.number_of(self._total) or 0) > wanted.most:
            raise _too_many(self._total, wanted)
        self._given = 0
        self._times = self._walk()

    def step(self) -> Frame | bool:
        """The next frame that is wanted; True where SLICE_SECONDS were over before it, False where there is none."""
        if self._given == self._wanted.number_of(self._total):
            return False
        ends = time.process_time() + SLICE_SECONDS
        with warnings.catch_warnings(action="ignore"):
            for index, seconds in self._times:
                if self._choice.takes(index, seconds):
                    self._given += 1
                    if self._given > self._wanted.most:
                        raise _too_many(self._total, self._wanted)
                    return Frame(index, seconds, finished(pillow.rgb(self._picture), self._info, self._size))
                if time.process_time() > ends:
                    return True
        return False

    def _walk(self) -> Iterator[tuple[int, float]]:
        """Come to one frame after the other: its number, and when it is shown."""
        seconds = 0.0
        for index in range(self._total):
            try:
                self._picture.seek(index)
                # A frame may reach beyond the screen, which grows then.
                pillow.check_size(self._picture, self._info)
                self._picture.load()
            except (MemoryError, UndecodableImage):
                raise
            except Exception as exc:  # whatever a plugin makes of a stranger's bytes
                raise UndecodableImage(f"Frame {index} of {self._total} cannot be decoded.") from exc
            told = self._picture.info.get("duration")
            yield index, seconds
            seconds += told / 1e3 if isinstance(told, int | float) and 0 < told < 1e9 else _UNTOLD_SECONDS


def _frames_in(picture: object, data: bytes, info: ImageInfo) -> int:
    """How many frames the file has, or says that it has."""
    total = count_frames(data, MOST_IN_FILE) if info.format is ImageFormat.GIF else getattr(picture, "n_frames", 1)
    if total > MOST_IN_FILE:
        raise TooManyFrames(f"The file has more than {MOST_IN_FILE} frames: send a part of it.")
    return max(total, 1)


def _too_many(total: int, wanted: Wanted) -> TooManyFrames:
    return TooManyFrames(
        f"The file has {total} frames, and {wanted.most} more are allowed in this request: ask for some of them, such "
        f"as frames=10 or frames=every:1s.",
        limit="max_frames",
        value=wanted.most,
    )
