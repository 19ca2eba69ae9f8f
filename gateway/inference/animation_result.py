"""The frames of one file on their way, and the one result that they become."""

from collections.abc import Callable
from dataclasses import replace

from gateway.errors import GatewayError, UndecodableImage
from gateway.inference.request_spec import FrameResult, Result


class AnimationResult:
    """Gathers the results of a file's frames; `answer` gets the file's once no frame is left in work.

    The file's predictions are those of its first frame that has an answer; where none has, it has the first one's
    error. A file that can be read no further has a last entry with the error, and none at all if that is its first.
    """

    def __init__(self, file: Result, answer: Callable[[Result], None]) -> None:
        self._file = file
        self._answer = answer
        self._frames: dict[int, tuple[float | None, Result]] = {}
        self._in_work = 0
        self._last = -1
        self._all_begun = False

    def set_size(self, width: int, height: int) -> None:
        """The pixels of its frames, which are known of a video only once it is open."""
        self._file = replace(self._file, width=width, height=height)

    def begin(self, index: int, seconds: float) -> Callable[[Result], None]:
        """A frame is in work: what takes its result."""
        self._in_work += 1
        self._last = index

        def take(result: Result) -> None:
            self._in_work -= 1
            self._frames[index] = seconds, result
            self._end_if_done()

        return take

    def end(self, error: GatewayError | None = None) -> None:
        """No other frame comes: that was the last one, or the file can be read no further."""
        self._all_begun = True
        if self._last < 0:
            self._answer(replace(self._file, error=error or UndecodableImage(), frames=()))
            return
        if error is not None:
            self._frames[self._last + 1] = None, replace(self._file, error=error)
        self._end_if_done()

    def _end_if_done(self) -> None:
        if not self._all_begun or self._in_work:
            return
        frames = sorted(self._frames.items())
        results = [result for _, (_, result) in frames]
        best = next((result for result in results if result.error is None), results[0])
        told = tuple(
            FrameResult(index, seconds, result.predictions, result.error) for index, (seconds, result) in frames
        )
        self._answer(replace(best, frames=told))


def as_animation(answer: Callable[[Result], None]) -> Callable[[Result], None]:
    """What takes the result of a still picture of which frames were asked for: it has one."""

    def take(result: Result) -> None:
        frames = () if result.error else (FrameResult(0, 0.0, result.predictions),)
        answer(replace(result, frames=frames))

    return take
