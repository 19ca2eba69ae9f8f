"""The bytes of uploads that a process holds while they arrive and wait; when it is full, it evicts the slowest."""

from collections.abc import Callable
from typing import Self

from gateway import metrics
from gateway.errors import Overloaded
from gateway.limits.pace import Pace


class HeldBytes:
    """The bytes of one request that are held and not in flight; released when the context ends."""

    def __init__(self, uploads: "UploadBuffer", pace: Pace) -> None:
        self._uploads = uploads
        self.pace = pace
        self.nbytes = 0
        self.refusal: Overloaded | None = None
        """The error of an evicted upload; the reader of its body raises it."""
        self.on_refusal: Callable[[], None] = lambda: None
        """Called on eviction; ends the reader's wait for the client."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hold(0)
        self._uploads.forget(self)

    def hold(self, nbytes: int) -> None:
        """Set the number of bytes that this request holds.

        Raises Overloaded if the buffer would be full and this upload is the slowest.
        """
        if nbytes != self.nbytes:
            self._uploads.change(self, nbytes)

    def refuse(self, error: Overloaded) -> None:
        """Evict this upload."""
        self.refusal = error
        self.hold(0)
        self.on_refusal()


class UploadBuffer:
    """The bytes that all uploads of a process hold, at most `max_bytes`.

    When the buffer is full, the upload with the most buffered bytes per byte/s is evicted: large, slow uploads first,
    new ones last. Only uploads that wait for their clients, and the one that grows, can be evicted: the others are
    complete and wait for a permit.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self._buffers: dict[HeldBytes, None] = {}
        metrics.BYTES_WAITING_LIMIT.set(max_bytes)

    def open(self, pace: Pace) -> HeldBytes:
        """Begin to count the bytes of one request."""
        return HeldBytes(self, pace)

    def change(self, buffer: HeldBytes, nbytes: int) -> None:
        """Set the bytes of one request; see HeldBytes.hold."""
        more = nbytes - buffer.nbytes
        while more > 0 and self.nbytes + more > self.max_bytes:
            slowest = self._slowest(buffer, nbytes)
            if slowest is buffer:
                raise self._full("The upload buffer is full ({} bytes), and this upload is the slowest; retry later.")
            metrics.UPLOADS_DISPLACED.inc()
            slowest.refuse(
                self._full("The upload buffer is full ({} bytes), and this upload was the slowest; retry later.")
            )
        buffer.nbytes = nbytes
        self.nbytes += more
        metrics.BYTES_WAITING.inc(more)
        if nbytes:
            self._buffers[buffer] = None
        else:
            self.forget(buffer)

    def forget(self, buffer: HeldBytes) -> None:
        """Remove a request that holds nothing."""
        self._buffers.pop(buffer, None)

    def _slowest(self, asking: HeldBytes, nbytes: int) -> HeldBytes:
        slowest, most_seconds = asking, _seconds(nbytes, asking)
        for buffer in self._buffers:
            if buffer.pace.waits and (seconds := _seconds(buffer.nbytes, buffer)) > most_seconds:
                slowest, most_seconds = buffer, seconds
        return slowest

    def _full(self, sentence: str) -> Overloaded:
        return Overloaded(sentence.format(self.max_bytes), limit="max_bytes_waiting", value=self.max_bytes)


def _seconds(nbytes: int, buffer: HeldBytes) -> float:
    return nbytes / max(buffer.pace.bytes_per_second, 1.0)
