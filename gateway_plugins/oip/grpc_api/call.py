"""One call: its messages in both directions, how long each may take, and what it holds.

The protocol: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md.
"""

import asyncio
import re
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import grpc

from gateway import metrics
from gateway.errors import GatewayError, InvalidBody, Overloaded, RequestTooLarge, UploadTimeout, UploadTooSlow
from gateway.limits.lease import Bound
from gateway.limits.pace import Pace
from gateway.limits.pool_clients import IDLE_SECONDS, PoolClient, UploadingClient, WaitingClient
from gateway.limits.pools import Pool, PoolLease
from gateway.server.slow_reader import STRETCH_BYTES
from gateway.settings import Settings
from gateway.time_slices import TimeSlice
from gateway.values.quantities import size
from gateway_plugins.oip.grpc_api.blocks import Blocks
from gateway_plugins.oip.grpc_api.status import Failure, Metadata, failure_of

PREFIX_BYTES = 5
"""In front of each message: a flag for compression, and the length, uint32 big-endian."""
STREAM_WINDOW = 256 * 1024
"""Bytes that a client may send of a call whose messages are not read."""
LINGER_SECONDS = 0.1
"""How long an error waits for the first message of a client that streams."""
TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
UNIT_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
NOT_HEADERS = frozenset(
    {
        *(b"accept", b"connection", b"content-encoding", b"content-length", b"content-type", b"host", b"te"),
        *(b"transfer-encoding", b"inference-header-content-length"),
    }
)
"""Metadata that is not passed on: it describes the HTTP/2 request, or would contradict the one that is made of it."""

Headers = Sequence[tuple[bytes, bytes]]


class Carrier(Protocol):
    """The connection of a call."""

    settings: Settings
    uploads: Pool
    responses: Pool
    max_message_bytes: int
    address: tuple[str, int] | None

    @property
    def is_stopping(self) -> bool:
        """Whether the server stops."""

    def open_window(self, nbytes: int, stream_id: int | None = None) -> None:
        """Let the client send more of one call, or of all."""

    def pump(self, call: "Call") -> None:
        """Send what the client's windows take of a call's message; raises ClientGone."""

    def update(self) -> None:
        """A call has begun or ended to wait for its client."""


class Call(PoolClient):
    """A call that a connection has received.

    A handler calls `receive` and `send`, and returns or raises; the connection then sends the status.
    """

    def __init__(
        self, connection: Carrier, stream_id: int, path: bytes, headers: Headers, *, key_bound: Bound | None
    ) -> None:
        self.connection = connection
        self.stream_id = stream_id
        self.path = path
        self.headers = [
            (name, value)
            for name, value in headers
            if name not in NOT_HEADERS and not name.startswith((b"grpc-", b":")) and not name.endswith(b"-bin")
        ]
        """The metadata, as headers of a request."""
        self.address = connection.address
        self.timeout = next((value for name, value in headers if name == b"grpc-timeout"), None)
        self.incoming = Incoming(self, key_bound)
        self.outgoing = Outgoing(self)
        self.slot: PoolLease | None = None
        self.task: asyncio.Task[None] | None = None
        self.has_begun = False
        """Whether the task runs: one that is cancelled before releases nothing."""
        self.is_handled = False
        """Whether a handler serves the call; until then it waits for its turn, and for the rest of its message."""
        self._is_cancelled = False
        self._created_at = asyncio.get_running_loop().time()
        self.error: GatewayError | None = None
        """Why another client's need, or the server, ends the call."""
        self._wakeup: asyncio.Future[None] | None = None
        self._time_slice = TimeSlice()

    @property
    def settings(self) -> Settings:
        """The settings of the service."""
        return self.connection.settings

    @property
    def timeout_seconds(self) -> float | None:
        """The client's deadline, from the beginning of the call; raises Failure if it cannot be read."""
        if self.timeout is None:
            return None
        match = TIMEOUT.fullmatch(self.timeout)
        if match is None:
            raise Failure(grpc.StatusCode.INVALID_ARGUMENT, "The metadata grpc-timeout is malformed.", "", ())
        return int(match[1]) * UNIT_SECONDS[match[2]]

    @property
    def awaits_client(self) -> bool:
        """Whether the client has to send more before the call can be served, or continued."""
        return self.incoming.is_waiting or self._is_incomplete

    @property
    def is_idle(self) -> bool:
        """Whether the gateway waits for this client."""
        return self.incoming.waited_seconds > 0 or self.outgoing.is_idle or self._is_incomplete

    def eviction_score(self, held: int) -> float:  # noqa: ARG002  # each call holds one slot
        """Seconds for which the gateway has waited for this client."""
        if self._is_incomplete:
            return asyncio.get_running_loop().time() - self._created_at
        return max(self.incoming.waited_seconds, self.outgoing.idle_seconds)

    @property
    def _is_incomplete(self) -> bool:
        """Whether the call waits for its turn, and its messages have not ended."""
        return not (self.is_handled or self.incoming.ended)

    def evict(self, error: GatewayError) -> None:
        """End the call with an error at its next wait for the client."""
        self.error = self.error or error
        self.wake()

    def end(self, error: GatewayError) -> None:
        """End the call with an error, whatever it does."""
        self.error = self.error or error
        if self.task is not None and self.has_begun:
            self.task.cancel()

    def cancel(self) -> None:
        """The client has ended the call."""
        self._is_cancelled = True
        if self.task is not None and self.has_begun:
            self.task.cancel()

    def check(self) -> None:
        """Raise ClientGone or an error if the call has ended before it began."""
        if self._is_cancelled:
            raise ClientGone
        if self.error is not None:
            raise self.error

    async def receive(self, max_bytes: int, *, awaits_next: bool = False) -> memoryview | None:
        """The next message, None at the end of the client's messages.

        With `awaits_next` the client may take its time before a message, not within one. Raises Failure for a
        message of more than `max_bytes` or a compressed one, InvalidBody, UploadTimeout, UploadTooSlow and Overloaded.
        """
        await self._time_slice.pause_if_over()
        incoming = self.incoming
        incoming.begin()
        try:
            while True:
                if self.error is not None:
                    raise self.error
                if (message := incoming.take(max_bytes)) is not None:
                    return message
                if incoming.ended:
                    if incoming.buffered_bytes:
                        raise InvalidBody("The call ends within a message.")
                    return None
                incoming.wait(endless=awaits_next and not incoming.buffered_bytes)
                if not await self._wait(incoming.left_seconds):
                    raise incoming.late()
        finally:
            incoming.pause()
            self.connection.update()

    async def send(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send a message, given in parts; returns once the client's windows have taken it.

        Raises Overloaded if the response buffer is full, and ClientGone if the client does not read.
        """
        await self._time_slice.pause_if_over()
        self.outgoing.begin(parts)
        self.connection.pump(self)
        while self.outgoing.pending_bytes:
            is_in_time = await self._wait(self.outgoing.left_seconds)
            if not is_in_time or self.error is not None:
                metrics.CONNECTIONS_CLOSED.labels("unread").inc()
                raise ClientGone
        self.connection.update()

    async def linger(self) -> None:
        """Before an error, wait a moment for a client that has sent no byte of a message yet.

        A client of grpc.aio whose call ends before its first message is written reports an error of its own.
        """
        if not (self.incoming.ended or self.incoming.has_received or self.error):
            self.incoming.wait(endless=False)
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_SECONDS):
                    await self._wait(self.incoming.left_seconds)

    def wake(self) -> None:
        """Let a wait for the client look at what has changed."""
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def close(self) -> None:
        """Release what the call holds."""
        self.incoming.close()
        self.outgoing.close()
        if self.slot is not None:
            self.slot.release()

    async def _wait(self, left_seconds: Callable[[], float | None]) -> bool:
        """Wait for `wake`; False if no time is left. The time may grow meanwhile."""
        self.connection.update()
        loop = asyncio.get_running_loop()
        while True:
            seconds = left_seconds()
            if seconds is not None and seconds <= 0:
                return False
            self._wakeup = wakeup = loop.create_future()
            try:
                async with asyncio.timeout(seconds):
                    await wakeup
            except TimeoutError:
                continue
            else:
                return True
            finally:
                self._wakeup = None


class ClientGone(Exception):
    """The client does not read the response: its call is reset."""


class Incoming(UploadingClient):
    """What a client sends in a call, counted in the upload buffer as it arrives.

    A client of that pool: the upload with the most bytes for its speed is evicted.
    """

    def __init__(self, call: Call, key_bound: Bound | None) -> None:
        self._call = call
        self._settings = settings = call.settings
        self._loop = asyncio.get_running_loop()
        self.pace = Pace(
            min_bytes_per_second=settings.min_upload_bytes_per_second,
            grace_seconds=settings.upload_grace_seconds,
            now=self._loop.time,
        )
        self._spare_seconds = settings.upload_timeout_seconds
        self._lease = call.connection.uploads.lease(self, key_bound=key_bound)
        self._buffer = Blocks()
        self._needed_bytes = PREFIX_BYTES
        self._delivered_bytes = self._unacknowledged_bytes = 0
        self._reads = self._endless = False
        self._since: float | None = None
        self.has_received = self.ended = False

    @property
    def buffered_bytes(self) -> int:
        """Bytes that are not delivered yet."""
        return len(self._buffer)

    @property
    def is_waiting(self) -> bool:
        """Whether the call waits for the client's next bytes."""
        return self._since is not None

    @property
    def waited_seconds(self) -> float:
        """Time since the client's last byte, while the gateway waits for a message that is due; else 0."""
        return 0.0 if self._since is None or self._endless else max(self._loop.time() - self._since, 1e-6)

    def evict(self, error: Overloaded) -> None:
        """Drop what has arrived, and end the call with an error."""
        self._buffer = Blocks()
        self._call.evict(error)

    def receive(self, data: bytes, flow_bytes: int) -> None:
        """Some bytes have arrived; `flow_bytes` with their padding."""
        self._unacknowledged_bytes += flow_bytes
        self.has_received = True
        try:
            self._lease.grow(len(data))
        except Overloaded as error:
            self._call.evict(error)
            return
        self._buffer.append(data)
        if self._since is not None:
            self._arrive(len(data))
            self._since = self._loop.time()
            self._endless = False
            self.pace.wait()
        else:
            self.pace.receive(len(data))
        self._replenish()
        if len(self._buffer) >= self._needed_bytes:
            self._call.wake()

    def end(self) -> None:
        """The client has sent its last message."""
        self.ended = True
        self._call.wake()

    def begin(self) -> None:
        """The call reads: the client may send more."""
        self._reads = True
        self._replenish()

    def wait(self, *, endless: bool) -> None:
        """Wait for the client's next bytes, with `endless` for as long as it takes."""
        self._endless = endless
        if self._since is None:
            self._since = self._loop.time()
        self.pace.wait()

    def pause(self) -> None:
        """The call does not read."""
        self._reads = False
        self._arrive(0)

    def left_seconds(self) -> float | None:
        """How long the client may take for the next bytes."""
        if self._endless or self._since is None:
            return None
        most = min(self._spare_seconds, self._settings.upload_idle_timeout_seconds)
        return min(most - (self._loop.time() - self._since), self.pace.spare_seconds)

    def late(self) -> GatewayError:
        """The error of a message that did not arrive in time."""
        settings = self._settings
        if self.pace.spare_seconds <= 0:
            value = settings.min_upload_bytes_per_second
            return UploadTooSlow(
                f"A message must arrive at {size(value)} a second; it is {settings.upload_grace_seconds:g} s behind.",
                limit="min_upload_bytes_per_second",
                value=value,
            )
        idle = settings.upload_idle_timeout_seconds < self._spare_seconds
        limit = "upload_idle_timeout_seconds" if idle else "upload_timeout_seconds"
        seconds = getattr(settings, limit)
        return UploadTimeout(
            f"The message did not arrive in time: the limit {limit} is {seconds:g} s.", limit=limit, value=seconds
        )

    def take(self, max_bytes: int) -> memoryview | None:
        """The next message, if it is complete; it is counted until `release`."""
        buffer = self._buffer
        if len(buffer) < PREFIX_BYTES:
            self._needed_bytes = PREFIX_BYTES
            return None
        prefix = buffer.first(PREFIX_BYTES)
        length = int.from_bytes(prefix[1:])
        if length > max_bytes:
            is_largest = max_bytes == self._call.connection.max_message_bytes
            limit = "grpc_max_message_bytes" if is_largest else "max_header_bytes"
            error = RequestTooLarge(f"The message may have {size(max_bytes)}.", limit=limit, value=max_bytes)
            raise failure_of(error, grpc.StatusCode.RESOURCE_EXHAUSTED)
        if prefix[0]:
            message = "The message is compressed: this service reads the encoding identity only."
            raise Failure(grpc.StatusCode.UNIMPLEMENTED, message, "", (("grpc-accept-encoding", "identity"),))
        self._needed_bytes = end = PREFIX_BYTES + length
        if len(buffer) < end:
            return None
        taken = memoryview(buffer.take(end))[PREFIX_BYTES:]
        self._delivered_bytes += length
        self._needed_bytes = PREFIX_BYTES
        self._spare_seconds = self._settings.upload_timeout_seconds
        self._hold()
        return taken

    def release(self, nbytes: int) -> None:
        """A message of this length is not used any more."""
        self._delivered_bytes -= nbytes
        self._hold()

    def close(self) -> None:
        """Hold nothing."""
        self._buffer = Blocks()
        self._since = None
        self._lease.release()

    def _arrive(self, nbytes: int) -> None:
        """End a wait for the client."""
        if self._since is not None:
            if not self._endless:
                self._spare_seconds -= self._loop.time() - self._since
            self._since = None
        self.pace.receive(nbytes)

    def _hold(self) -> None:
        self._lease.hold(len(self._buffer) + self._delivered_bytes)

    def _replenish(self) -> None:
        """Let the client send as much as was counted, while the call reads."""
        if self._reads and not self.ended and self._unacknowledged_bytes >= STREAM_WINDOW // 2:
            self._call.connection.open_window(self._unacknowledged_bytes, self._call.stream_id)
            self._unacknowledged_bytes = 0


class Outgoing(WaitingClient):
    """What a client has to read of a call, counted in the response buffer until its windows have taken it.

    A client of that pool: the call that has been unread for longest is evicted.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._parts: deque[memoryview] = deque()
        self._lease = call.connection.responses.lease(self)
        self._since: float | None = None
        self._since_bytes = self._held_bytes = 0
        self.pending_bytes = 0
        self.started = False
        """Whether the headers of the response are sent."""

    @property
    def idle_seconds(self) -> float:
        """For how long the client has read less than STRETCH_BYTES; 0 if nothing is pending."""
        return 0.0 if self._since is None else self._loop.time() - self._since

    def evict(self, error: Overloaded) -> None:
        """End the call with an error."""
        self._call.evict(error)

    def hold(self, nbytes: int) -> None:
        """Count a response that waits to be sent; raises Overloaded."""
        self._lease.hold(self._held_bytes + nbytes + self.pending_bytes)
        self._held_bytes += nbytes

    def begin(self, parts: Sequence[bytes | memoryview]) -> None:
        """Prepare a message; raises Overloaded."""
        length = sum(map(len, parts))
        self._held_bytes = max(0, self._held_bytes - length)
        self._lease.hold(self._held_bytes + PREFIX_BYTES + length)
        self._parts = deque((memoryview(b"\0" + length.to_bytes(4)), *(memoryview(part) for part in parts)))
        self.pending_bytes = self._since_bytes = PREFIX_BYTES + length
        self._since = self._loop.time()

    def left_seconds(self) -> float:
        """How long the client may take to read the next STRETCH_BYTES."""
        stops = self._call.connection.is_stopping
        return (IDLE_SECONDS if stops else self._call.settings.answer_timeout_seconds) - self.idle_seconds

    def take(self, most: int) -> bytes:
        """Up to `most` bytes that are pending."""
        taken: list[memoryview] = []
        left = most
        while self._parts and left:
            part = self._parts.popleft()
            if len(part) > left:
                self._parts.appendleft(part[left:])
                part = part[:left]
            taken.append(part)
            left -= len(part)
        self.pending_bytes -= most - left
        if not self.pending_bytes:
            self._since = None
            self._lease.hold(self._held_bytes)
            self._call.wake()
        elif self.pending_bytes <= self._since_bytes - STRETCH_BYTES:
            self._since, self._since_bytes = self._loop.time(), self.pending_bytes
        return b"".join(taken)

    def close(self) -> None:
        """Hold nothing."""
        self._parts.clear()
        self.pending_bytes, self._since = 0, None
        self._lease.release()


def trailers(code: grpc.StatusCode, message: str, metadata: Metadata) -> list[tuple[bytes, bytes]]:
    """The trailers of a call."""
    found = [(b"grpc-status", b"%d" % code.value[0])]
    if message:
        found.append((b"grpc-message", _percent_encoded(message)))
    for name, value in metadata:
        found.append((name.encode(), _base64(value) if isinstance(value, bytes) else value.encode("ascii", "replace")))
    return found


def _base64(value: bytes) -> bytes:
    return b64encode(value).rstrip(b"=")


def _percent_encoded(message: str) -> bytes:
    """Bytes outside of printable ASCII, and %, as %XX."""
    return b"".join(
        b"%c" % byte if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte for byte in message.encode()
    )
