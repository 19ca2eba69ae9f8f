"""Collects the results of a file's frames into the one result of the file."""

from collections.abc import Callable
from dataclasses import replace

from gateway.errors import GatewayError, UndecodableImage
from gateway.inference.request_spec import FrameResult, Result


class AnimationResult:
    """Collects the results of a file's frames; `answer` gets the file's result once no frame is in progress.

    The file's predictions are those of its first answered frame; if no frame was answered, the file has the error of
    the first one. A file that breaks off has a last entry with the error, or no entries if no frame was read.
    """

    def __init__(self, file: Result, answer: Callable[[Result], None]) -> None:
        self.file = file
        self._answer = answer
        self._frames: dict[int, tuple[float | None, Result]] = {}
        self._in_progress = 0
        self._last = -1
        self._all_begun = False

    def begin(self, index: int, seconds: float) -> Callable[[Result], None]:
        """Register a frame; returns the callback for its result."""
        self._in_progress += 1
        self._last = index

        def take(result: Result) -> None:
            self._in_progress -= 1
            self._frames[index] = seconds, result
            self._end_if_done()

        return take

    def end(self, error: GatewayError | None = None) -> None:
        """Mark the end of the file: its last frame was read, or reading failed with `error`."""
        self._all_begun = True
        if self._last < 0:
            self._answer(replace(self.file, error=error or UndecodableImage(), frames=()))
            return
        if error is not None:
            self._frames[self._last + 1] = None, replace(self.file, error=error)
        self._end_if_done()

    def _end_if_done(self) -> None:
        if not self._all_begun or self._in_progress:
            return
        frames = sorted(self._frames.items())
        results = [result for _, (_, result) in frames]
        best = next((result for result in results if result.error is None), results[0])
        frame_results = tuple(
            FrameResult(index, seconds, result.predictions, result.error) for index, (seconds, result) in frames
        )
        self._answer(replace(best, frames=frame_results))


def as_animation(answer: Callable[[Result], None]) -> Callable[[Result], None]:
    """A callback for the result of a still image in a request for frames: it has one frame."""

    def take(result: Result) -> None:
        frames = () if result.error else (FrameResult(0, 0.0, result.predictions),)
        answer(replace(result, frames=frames))

    return take
