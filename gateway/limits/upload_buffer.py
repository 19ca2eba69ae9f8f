"""How many bytes of uploads a process holds while they arrive and wait, and who goes when room is short."""

from collections.abc import Callable
from typing import Self

from gateway import metrics
from gateway.errors import Overloaded
from gateway.limits.pace import Pace


class HeldBytes:
    """The bytes of one request that are held and not in flight; none once its context ends."""

    def __init__(self, uploads: "UploadBuffer", pace: Pace) -> None:
        self._uploads = uploads
        self.pace = pace
        self.nbytes = 0
        self.refusal: Overloaded | None = None
        """Why this upload had to make room for others; its reader raises it."""
        self.on_refusal: Callable[[], None] = lambda: None
        """Ends the reader's wait for the client."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hold(0)
        self._uploads.forget(self)

    def hold(self, nbytes: int) -> None:
        """Count `nbytes` from now on, in place of what was counted before.

        Raises Overloaded where the process would hold too many, and this upload is the one to go.
        """
        self._uploads.change(self, nbytes)

    def refuse(self, error: Overloaded) -> None:
        """Make room for others."""
        self.refusal = error
        self.hold(0)
        self.on_refusal()


class UploadBuffer:
    """The bytes that all uploads of a process hold, at most `max_bytes`.

    When room is short, the upload goes that needs longest, at its speed, for as much as it holds: who is slow, the
    sooner the more it holds, and not who has just come. Only those that wait for their clients can go, and who asks for
    room: the others are complete and wait for their turn.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self._buffers: dict[HeldBytes, None] = {}
        metrics.BYTES_WAITING_LIMIT.set(max_bytes)

    def open(self, pace: Pace) -> HeldBytes:
        """A count of what one request holds."""
        return HeldBytes(self, pace)

    def change(self, buffer: HeldBytes, nbytes: int) -> None:
        """See Buffer.hold."""
        more = nbytes - buffer.nbytes
        while more > 0 and self.nbytes + more > self.max_bytes:
            slowest = self._slowest(buffer, nbytes)
            if slowest is buffer:
                raise self._full("The waiting uploads would exceed {} bytes; try again later.")
            metrics.UPLOADS_DISPLACED.inc()
            slowest.refuse(
                self._full("The uploads that wait have {} bytes, and this one came slowest; try again later.")
            )
        buffer.nbytes = nbytes
        self.nbytes += more
        metrics.BYTES_WAITING.inc(more)
        if nbytes:
            self._buffers[buffer] = None
        else:
            self.forget(buffer)

    def forget(self, buffer: HeldBytes) -> None:
        """Count a request no more, which holds nothing."""
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
