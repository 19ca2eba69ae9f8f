"""The frames of animations: each is classified, and a file has one result."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from gateway.api.answers import error_out, predictions_out
from gateway.api.parameters import FRAMES_PATTERN
from gateway.errors import (
    DeadlineExceeded,
    GatewayError,
    ImageError,
    InvalidParameter,
    Overloaded,
    UndecodableImage,
)
from gateway.inference.request import Image, within
from gateway.inference.request_spec import Report
from gateway.inference.result import NO_PREDICTIONS, Prediction, Result, Row
from gateway.ingest.image_formats import Header, shrunk_bytes
from gateway.ingest.inspection import require_decoders
from gateway.limits.bounds import Lease
from gateway.plugins.media.frame_selection import FrameSelection
from gateway.plugins.media.open_files import OpenFile


@dataclass(frozen=True, slots=True)
class FrameResult:
    """The result of one frame: its index in the file, and when it is shown, in seconds from the first one.

    If `seconds` is None, it is the error of all frames from this one on, which could not be read.
    """

    index: int
    seconds: float | None
    predictions: Sequence[Prediction] = NO_PREDICTIONS
    error: GatewayError | None = None


@dataclass(slots=True)
class AnimationResult(Result):
    """The result of a file in a request for frames; `predictions` belong to its first frame without an error."""

    frames: tuple[FrameResult, ...] = ()

    @property
    def rows(self) -> Sequence[Row]:
        """The rows of the frames; without frames, the file's row."""
        if not self.frames:
            return (self.row,)
        row = replace(self.row, scores=None, embedding=None)
        return [replace(row, predictions=each.predictions, error=each.error) for each in self.frames]

    @property
    def size(self) -> tuple[int, int]:
        """See Result.size; includes the frames."""
        return len(self.predictions) + sum(len(frame.predictions) for frame in self.frames), 1 + len(self.frames)

    def members(self) -> dict[str, object]:
        """The member `frames`."""
        return {
            "frames": [
                {
                    "index": frame.index,
                    "time_s": None if frame.seconds is None else round(frame.seconds, 3),
                    "predictions": predictions_out(frame.predictions),
                    "error": None if frame.error is None else error_out(frame.error),
                }
                for frame in self.frames
            ]
        }


def read_frames(given: str, most: int) -> FrameSelection:
    """Parse a request's `frames`, at most `most`; raises InvalidParameter."""
    if re.fullmatch(FRAMES_PATTERN, given) is None:
        raise InvalidParameter("'frames': must be a number of frames, or 'all'.")
    if given == "all":
        return FrameSelection(most)
    if int(given) > most:
        raise InvalidParameter(f"'frames': must be at most {most:,}.", limit="max_frames", value=most)
    return FrameSelection(most, count=int(given))


class Frames:
    """The frames that one request selects; see gateway.inference.request_spec.Expansion."""

    def __init__(self, wanted: FrameSelection) -> None:
        self._wanted = wanted
        self._queued = 0
        """Frames of the request so far."""

    def single(self, report: Report) -> Report:
        """A still image has one frame."""

        def take(image: Image, result: Result) -> None:
            frames = () if result.error else (FrameResult(0, 0.0, result.predictions),)
            report(image, _of(result, frames))

        return take

    async def run(self, image: Image) -> bool:
        """Queue each wanted frame of an animation; the next upload is read after the last one."""
        if image.header is None or not image.header.animated:
            return False
        image.report = image.request.report
        file = FileFrames(image)
        try:
            await within(image.deadline, self._read(image, image.header, file))
        except (ImageError, DeadlineExceeded, Overloaded) as error:
            if isinstance(error, Overloaded) and not image.request.admitted:
                raise
            file.end(error)
        else:
            file.end()
        return True

    async def _read(self, image: Image, info: Header, file: "FileFrames") -> None:
        data, request = image.upload.data, image.request
        require_decoders(request.service.limits)
        size = await image.decoded_size()
        nbytes = shrunk_bytes(info, size)
        wanted = replace(self._wanted, most=self._wanted.most - self._queued)
        async with OpenFile(request.service.decoders, data, info, size, request.account, wanted) as frames:

            async def decode() -> tuple[bytes, Report]:
                index, seconds, pixels = await frames.next()
                return pixels, file.begin(index, seconds)

            while frames.has_next:
                if file.has_frames:
                    await image.charge()
                await image.add(await _permit(image, frames, nbytes), decode)
                self._queued += 1


async def _permit(image: Image, frames: OpenFile, nbytes: int) -> Lease:
    """The permit of the next frame of a file that is open: it must not wait for the file to be opened again."""
    while True:
        with image.request.stages["prepare"]:
            await frames.open()
        permit = await image.request.permit(nbytes, image.deadline)
        if frames.is_open:
            return permit
        permit.release()  # another file got the slot meanwhile


class FileFrames:
    """Collects the results of a file's frames; reports the file's result once no frame is in progress.

    The file has the predictions of its first answered frame; if no frame was answered, it has the error of the first
    one. A file that breaks off has a last entry with the error, or no entries if no frame was read.
    """

    def __init__(self, file: Image) -> None:
        self._file = file
        self._frames: dict[int, tuple[float | None, Result]] = {}
        self._first: tuple[tuple[bool, int], Image] = (True, sys.maxsize), file
        """The first answered frame, or else the first one: whether it has an error, its index; and its image."""
        self._in_progress = 0
        self._last = -1
        self._all_begun = False

    @property
    def has_frames(self) -> bool:
        """Whether a frame was read."""
        return self._last >= 0

    def begin(self, index: int, seconds: float) -> Report:
        """Register a frame; returns the function for its result."""
        self._in_progress += 1
        self._last = index

        def take(image: Image, result: Result) -> None:
            self._in_progress -= 1
            self._add(index, seconds, image, result)
            self._end_if_done()

        return take

    def end(self, error: GatewayError | None = None) -> None:
        """Mark the end of the file: its last frame was read, or reading failed with `error`."""
        self._all_begun = True
        if not self.has_frames:
            self._file.report(self._file, _of(self._file.result(Row(error=error or UndecodableImage())), ()))
            return
        if error is not None:
            self._add(self._last + 1, None, self._file, self._file.result(Row(error=error)))
        self._end_if_done()

    def _add(self, index: int, seconds: float | None, image: Image, result: Result) -> None:
        """Keep a result, and one of the images: each has its pixels, but no longer a permit."""
        self._frames[index] = seconds, result
        self._first = min(self._first, ((result.error is not None, index), image), key=itemgetter(0))

    def _end_if_done(self) -> None:
        if not self._all_begun or self._in_progress:
            return
        frames = sorted(self._frames.items())
        results = tuple(
            FrameResult(index, seconds, result.predictions, result.error) for index, (seconds, result) in frames
        )
        (_, first), image = self._first
        self._file.report(image, _of(self._frames[first][1], results))


def _of(result: Result, frames: tuple[FrameResult, ...]) -> AnimationResult:
    return AnimationResult(result.index, result.filename, result.width, result.height, result.row, frames)
