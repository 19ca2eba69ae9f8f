"""One call: what its client sends and reads, each within a time, and what the gateway holds of it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar
from urllib.parse import unquote

import grpc

from gateway import metrics
from gateway.errors import GatewayError, HeadersTooLarge, InvalidBody, Overloaded, UploadTimeout
from gateway.limits.lease import Bound
from gateway.limits.pool_clients import PoolClient, WaitingClient
from gateway.limits.pools import Pool
from gateway.settings import Settings
from gateway.values.quantities import size
from gateway_plugins.oip.grpc_api.status import failure_of

NOT_HEADERS = frozenset(
    {
        *("accept", "connection", "content-encoding", "content-length", "content-type", "host", "te"),
        *("transfer-encoding", "inference-header-content-length"),
    }
)
"""Metadata that is not passed on: it describes the HTTP/2 request, or would contradict the one that is made of it."""
IDLE_SECONDS = 0.1
"""A call whose client the gateway has waited for this long can make room for another one."""

T = TypeVar("T")


class ClientGone(Exception):
    """The client has left, or does not read the response."""


class Call(WaitingClient):
    """A call that the server has received; it is idle while the gateway waits for its client.

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
        self._upload = uploads.lease(_Arrived())
        self._response = responses.lease(self)
        self._reading: asyncio.Task[bytes | None] | None = None
        self._eviction: asyncio.Future[GatewayError] = self._loop.create_future()
        self._read_since: float | None = None
        self._write_since: float | None = None

    @property
    def unread_seconds(self) -> float:
        """For how long the client has not read a response."""
        return 0.0 if self._write_since is None else self._loop.time() - self._write_since

    @property
    def idle_seconds(self) -> float:
        """For how long the gateway has waited for a message that is due, or for the client to read."""
        return self.unread_seconds if self._read_since is None else self._loop.time() - self._read_since

    @property
    def is_idle(self) -> bool:
        """Whether the gateway has waited for IDLE_SECONDS."""
        return self.idle_seconds >= IDLE_SECONDS

    def check(self) -> None:
        """Raise HeadersTooLarge; grpc bounds metadata only once a client has acknowledged its settings."""
        most = self.settings.max_header_bytes
        if sum(len(name) + len(value) for name, value in self._context.invocation_metadata()) > most:
            raise HeadersTooLarge(f"Metadata may have {size(most)}.", limit="max_header_bytes", value=most)

    def bind(self, key_bound: Bound | None) -> None:
        """Count messages in the share of an API key as well."""
        self._upload = self._uploads.lease(_Arrived(), key_bound=key_bound)

    def evict(self, error: GatewayError) -> None:
        """End the wait for the client, now or the next one, with an error."""
        if not self._eviction.done():
            self._eviction.set_result(error)

    async def receive(self, seconds: float | None = None) -> bytes:
        """The message of a call that has one; raises Failure without one, and what `receive_next` raises."""
        message = await self.receive_next(seconds or self.settings.upload_timeout_seconds)
        if message is None:
            raise failure_of(InvalidBody("The call has no message."))
        return message

    async def receive_next(self, seconds: float | None = None) -> bytes | None:
        """The next message, None at the end of the client's messages; it is counted until `release`.

        Without `seconds` the client may take its time. Raises UploadTimeout, the error of `evict`, and Overloaded. A
        message that comes after an error or a cancellation is returned by the next call.
        """
        if self._reading is None:
            self._reading = self._start(self._read())
        self._read_since = None if seconds is None else self._loop.time()
        try:
            message = await self._within(seconds, self._reading)
        except TimeoutError:
            limit = "upload_timeout_seconds"
            sentence = f"The message did not arrive within {seconds:g} s."
            raise UploadTimeout(sentence, limit=limit, value=seconds) from None
        finally:
            self._read_since = None
        self._reading = None
        if message is not None:
            self._upload.grow(len(message))
        return message

    def release(self, nbytes: int) -> None:
        """A message of this length is not used any more."""
        self._upload.grow(-nbytes)

    def hold(self, nbytes: int) -> None:
        """Count a response that waits to be sent, or do not if `nbytes` is negative; raises Overloaded."""
        self._response.grow(nbytes)

    async def send(self, message: bytes) -> None:
        """Send a message; raises Overloaded, and ClientGone if the client does not read."""
        self.hold(len(message))
        self._write_since = self._loop.time()
        try:
            await self._within(self.settings.answer_timeout_seconds, self._start(self._context.write(message)))
        except (TimeoutError, GatewayError):
            metrics.CONNECTIONS_CLOSED.labels("unread").inc()
            raise ClientGone from None
        except grpc.aio.BaseError as exc:
            raise ClientGone from exc
        finally:
            self._write_since = None
        self.hold(-len(message))

    def close(self) -> None:
        """Hold nothing."""
        self._upload.release()
        self._response.release()

    async def _read(self) -> bytes | None:
        message = await self._context.read()
        return None if message is grpc.aio.EOF else message

    def _start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = self._loop.create_task(work)
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # it may end after the call
        return task

    async def _within(self, seconds: float | None, work: "asyncio.Task[T]") -> T:
        """The result of work; raises TimeoutError, and the error of `evict`."""
        either: set[asyncio.Future[Any]] = {work, self._eviction}
        await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        if self._eviction.done():
            raise self._eviction.result()
        raise TimeoutError


class _Arrived(PoolClient):
    """A message that is complete: others make room for it, and it makes room for none."""

    is_idle = False

    def eviction_score(self, held: int) -> float:  # noqa: ARG002  # see PoolClient
        """Below every upload that is still arriving."""
        return 0.0

    def evict(self, error: Overloaded) -> None:
        """Never called."""
        raise AssertionError from error


def _address(peer: str) -> tuple[str, int] | None:
    """The host and port of a peer such as ipv4:10.0.0.1:5000 or ipv6:%5B::1%5D:5000."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return (host.strip("[]"), int(port)) if port.isdigit() else None
