"""How long a client may take to read what waits for it."""

import asyncio

from gateway import metrics

STRETCH_BYTES = 64 * 1024
"""What a client must take in of what waits for it within `answer_timeout_seconds`."""


class ReadingWatch:
    """Aborts a connection whose client takes in less than STRETCH_BYTES within `seconds`.

    A short rest must have been read to its end.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, transport: asyncio.Transport) -> None:
        """Watch from now on, if anything waits and nothing is watched yet."""
        if self._timer is None and (nbytes := transport.get_write_buffer_size()):
            self._timer = self._loop.call_later(self._seconds, self._judge, transport, nbytes)

    def stop(self) -> None:
        """Watch no longer: everything was read, or the connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _judge(self, transport: asyncio.Transport, before_bytes: int) -> None:
        self._timer = None
        left_bytes = transport.get_write_buffer_size()
        if left_bytes and left_bytes > before_bytes - STRETCH_BYTES:
            metrics.CONNECTIONS_CLOSED.labels("unread").inc()
            transport.abort()
        else:
            self.begin(transport)
