"""The timeout of a client that does not read what was written for it."""

import asyncio

from gateway import metrics

STRETCH_BYTES = 64 * 1024
"""What a client must read of what was written for it within `answer_timeout_seconds`."""


class SlowReaderTimeout:
    """Aborts a connection whose client reads less than STRETCH_BYTES within `seconds`.

    A shorter rest must have been read to its end.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        self.timer: asyncio.TimerHandle | None = None
        """None while it does not run."""

    def start(self, transport: asyncio.Transport) -> None:
        """Start the timer, unless it runs already or everything was read."""
        if self.timer is None and (nbytes := transport.get_write_buffer_size()):
            self.timer = self._loop.call_later(self._seconds, self._expire, transport, nbytes)

    def stop(self) -> None:
        """Stop the timer: everything was read, or the connection is closed."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _expire(self, transport: asyncio.Transport, before_bytes: int) -> None:
        self.timer = None
        left_bytes = transport.get_write_buffer_size()
        if left_bytes and left_bytes > before_bytes - STRETCH_BYTES:
            metrics.CONNECTIONS_CLOSED.labels("unread").inc()
            transport.abort()
        else:
            self.start(transport)
