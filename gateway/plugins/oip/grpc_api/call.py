"""One call: its client's messages and reads, each within a time limit, and the resources that it holds."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar
from urllib.parse import unquote

import grpc

from gateway import metrics
from gateway.errors import HeadersTooLarge, InvalidBody, Overloaded, UploadTimeout
from gateway.limits.bounds import Bound
from gateway.limits.pools import Pool
from gateway.plugins.oip.grpc_api.status import failure_of
from gateway.server.http import MAX_HEADER_BYTES
from gateway.settings import Settings
from gateway.values.quantities import size

NOT_HEADERS = frozenset(
    {
        *("accept", "connection", "content-encoding", "content-length", "content-type", "host", "te"),
        *("transfer-encoding", "inference-header-content-length"),
    }
)
"""Metadata that is not passed on: it describes the HTTP/2 request, or would contradict the converted request's."""

T = TypeVar("T")


class ClientGone(Exception):
    """The client has left, or does not read the response."""


class Call:
    """A call that the server has received.

    Reads and writes are tasks that are never cancelled: grpc frees the buffers of an operation when it ends, and a
    cancelled one would leak a message.
    """

    def __init__(self, context: Any, settings: Settings, uploads: Pool, responses: Pool) -> None:  # noqa: ANN401  # grpc has no types
        self._context = context
        self.settings = settings
        self._loop = asyncio.get_running_loop()
        self.headers = [
            (name.encode(), value.encode())
            for name, value in context.invocation_metadata()
            if isinstance(value, str) and name not in NOT_HEADERS and not name.startswith("grpc-")
        ]
        """The metadata, as headers of a request."""
        self.address = _address(context.peer())
        self._uploads = uploads
        self._upload = uploads.lease(ARRIVED)
        self._response = responses.lease(ARRIVED)
        self._reading: asyncio.Task[bytes | None] | None = None

    def check(self) -> None:
        """Raise HeadersTooLarge; grpc bounds metadata only once a client has acknowledged its settings."""
        most = MAX_HEADER_BYTES
        if sum(len(name) + len(value) for name, value in self._context.invocation_metadata()) > most:
            raise HeadersTooLarge(f"Metadata may have {size(most)}.", limit="max_header_bytes", value=most)

    def bind(self, key_bound: Bound | None) -> None:
        """Count messages in the share of an API key as well."""
        self._upload = self._uploads.lease(ARRIVED, key_bound=key_bound)

    async def receive(self, seconds: float | None = None) -> bytes:
        """The message of a call that has one; raises Failure without one, and what `receive_next` raises."""
        message = await self.receive_next(seconds or self.settings.upload_timeout_seconds)
        if message is None:
            raise failure_of(InvalidBody("The call has no message."))
        return message

    async def receive_next(self, seconds: float, stopping: "asyncio.Future[None] | None" = None) -> bytes | None:
        """The next message, None at the end of the client's messages; it is counted until `release`.

        Raises UploadTimeout after `seconds`, or immediately if `stopping` is done, and Overloaded. A message that comes
        after an error or a cancellation is returned by the next call.
        """
        if self._reading is None:
            self._reading = self._start(self._read())
        either: set[asyncio.Future[Any]] = {self._reading, *([stopping] if stopping else [])}
        await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not self._reading.done():
            sentence = f"The message did not arrive within {seconds:g} s."
            raise UploadTimeout(sentence, limit="upload_timeout_seconds", value=seconds)
        message, self._reading = self._reading.result(), None
        if message is not None:
            self._upload.grow(len(message))
        return message

    def release(self, nbytes: int) -> None:
        """A message of this length is no longer used."""
        self._upload.grow(-nbytes)

    async def send(self, message: bytes) -> None:
        """Send a message; raises Overloaded, and ClientGone if the client does not read."""
        self._response.grow(len(message))
        writing = self._start(self._context.write(message))
        await asyncio.wait({writing}, timeout=self.settings.answer_timeout_seconds)
        if not writing.done():
            metrics.CONNECTIONS_CLOSED.labels("unread").inc()
            raise ClientGone
        try:
            writing.result()
        except grpc.aio.BaseError as exc:
            raise ClientGone from exc
        self._response.grow(-len(message))

    def close(self) -> None:
        """Release everything."""
        self._upload.release()
        self._response.release()

    async def _read(self) -> bytes | None:
        message = await self._context.read()
        return None if message is grpc.aio.EOF else message

    def _start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = self._loop.create_task(work)
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # it may end after the call
        return task


class _Arrived:
    """A client of a pool with a message that has arrived: idle clients are evicted for it, and it never is."""

    is_idle = False

    def eviction_score(self, held: int) -> float:  # noqa: ARG002  # see PoolClient
        """Below every client that the gateway waits for."""
        return 0.0

    def evict(self, error: Overloaded) -> None:
        """Do nothing: it is not called."""


ARRIVED = _Arrived()


def _address(peer: str) -> tuple[str, int] | None:
    """The host and port of a peer such as ipv4:10.0.0.1:5000 or ipv6:%5B::1%5D:5000."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return (host.strip("[]"), int(port)) if port.isdigit() else None
