"""Responses that are built and sent in pieces, so that other tasks run in between and memory is bounded."""

from collections import deque
from collections.abc import Iterable, Iterator
from http import HTTPStatus

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.limits.pools import PoolLease
from gateway.time_slices import TimeSlice

PIECE_BYTES = 64 * 1024


class PiecedAnswer(Response):
    """A response body in pieces, with a known length; waits between the pieces for a client that reads slowly.

    `held` counts the bytes that are not sent yet.
    """

    def __init__(
        self,
        pieces: deque[bytes],
        held: PoolLease,
        status: HTTPStatus = HTTPStatus.OK,
        media_type: str = "application/json",
    ) -> None:
        self._pieces = pieces
        self._held = held
        self._length = length = sum(map(len, pieces))
        self.status_code, self.background = status, None
        self.raw_headers = [(b"content-length", b"%d" % length), (b"content-type", media_type.encode())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # ASGI's signature
        """Send it; raises Overloaded, before anything is sent, if the response buffer is full."""
        self._held.hold(self._length)  # the results themselves are released
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        time_slice = TimeSlice()
        for piece in _joined(self._pieces):
            await send({"type": "http.response.body", "body": piece, "more_body": bool(self._pieces)})
            if self._pieces:  # the bytes of the last piece are released with the request
                self._held.grow(-len(piece))
                await time_slice.pause_if_over()


async def pieces_of(items: Iterable[bytes], separator: bytes, held: PoolLease) -> deque[bytes]:
    """The items with a separator between them; `held` counts every PIECE_BYTES. Other tasks run in between."""
    time_slice = TimeSlice()
    pieces: deque[bytes] = deque()
    uncounted_bytes = 0
    for item in items:
        if pieces:
            pieces.append(separator)
        pieces.append(item)
        uncounted_bytes += len(pieces[-1])
        if uncounted_bytes > PIECE_BYTES:
            held.grow(uncounted_bytes)
            uncounted_bytes = 0
        await time_slice.pause_if_over()
    return pieces


def _joined(pieces: deque[bytes]) -> Iterator[bytes]:
    """Join pieces to PIECE_BYTES or slightly more, and yield at least one; the deque is emptied."""
    joined = bytearray()
    while pieces:
        joined += pieces.popleft()
        if pieces and len(joined) >= PIECE_BYTES:
            yield bytes(joined)
            joined = bytearray()
    yield bytes(joined)
