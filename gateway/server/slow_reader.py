"""How long a client may take to read what was written for it."""

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
        self._timer: asyncio.TimerHandle | None = None

    def start(self, transport: asyncio.Transport) -> None:
        """Start the timer, unless it runs already or everything was read."""
        if self._timer is None and (nbytes := transport.get_write_buffer_size()):
            self._timer = self._loop.call_later(self._seconds, self._expire, transport, nbytes)

    def stop(self) -> None:
        """Stop the timer: everything was read, or the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self, transport: asyncio.Transport, before_bytes: int) -> None:
        self._timer = None
        left_bytes = transport.get_write_buffer_size()
        if left_bytes and left_bytes > before_bytes - STRETCH_BYTES:
            metrics.CONNECTIONS_CLOSED.labels("unread").inc()
            transport.abort()
        else:
            self.start(transport)
