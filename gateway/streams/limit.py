"""How many streams one process serves."""

from collections.abc import Iterator
from contextlib import contextmanager

from gateway import metrics
from gateway.errors import Overloaded


class Streams:
    """The streams that are open, at most `most`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.open = 0
        metrics.STREAMS_LIMIT.set(most)

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place for one more while the block lasts; raises Overloaded where there is none."""
        if self.open >= self.most:
            raise Overloaded(
                f"Too many streams are open: the limit max_streams is {self.most}; try again later.",
                limit="max_streams",
                value=self.most,
            )
        self.open += 1
        metrics.STREAMS.inc()
        try:
            yield
        finally:
            self.open -= 1
            metrics.STREAMS.dec()
