"""Limits the open streams of a process."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from gateway import metrics
from gateway.errors import GatewayError, Overloaded

MIN_IDLE_SECONDS = 1.0
"""A stream that had a frame within so many seconds is never displaced by a new one."""


class Stream(Protocol):
    """What the limit needs of an open stream."""

    @property
    def idle_seconds(self) -> float:
        """How long the stream has had no frame; 0 while one waits for its answer."""

    def stop(self, error: GatewayError) -> None:
        """End the stream soon, with an error for its client."""


class Streams:
    """The streams that are open, at most `most`.

    For one more, the stream that has had no frame for longest is stopped, if that is MIN_IDLE_SECONDS or longer. It
    does not count from then on, even while its client still reads the error.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._open: dict[Stream, None] = {}
        metrics.STREAMS_LIMIT.set(most)

    def check(self) -> None:
        """Raise Overloaded unless one more stream can be opened."""
        if len(self._open) >= self.most and self._idle_longest() is None:
            raise self._full("Too many streams are open: the limit max_streams is {}; try again later.")

    @contextmanager
    def place(self, stream: Stream) -> Iterator[None]:
        """Count a stream while the block lasts, and stop another one for it if need be; raises Overloaded."""
        self.check()
        if len(self._open) >= self.most and (other := self._idle_longest()) is not None:
            del self._open[other]
            metrics.STREAMS_STOPPED.labels("displaced").inc()
            other.stop(
                self._full(
                    "Another stream needs this one's place: the limit max_streams is {}, and this stream has had no "
                    "frame for longest. Open a stream again when there are frames."
                )
            )
        self._open[stream] = None
        metrics.STREAMS.inc()
        try:
            yield
        finally:
            self._open.pop(stream, None)
            metrics.STREAMS.dec()

    def _idle_longest(self) -> Stream | None:
        found = max(self._open, key=lambda stream: stream.idle_seconds, default=None)
        return found if found is not None and found.idle_seconds >= MIN_IDLE_SECONDS else None

    def _full(self, sentence: str) -> Overloaded:
        return Overloaded(sentence.format(self.most), limit="max_streams", value=self.most)
