"""One HTTP/2 connection of gRPC clients, from accept to close: its timer, its calls, and what it may send."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

import grpc
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes
from h2.settings import Settings as Http2Settings
from hyperframe.frame import GoAwayFrame

from gateway import metrics
from gateway.errors import HeadersTooLarge, Overloaded
from gateway.limits.connections import RESERVE_SECONDS, Connections
from gateway.limits.lease import Bound
from gateway.limits.pace import Pace
from gateway.limits.pools import Pool
from gateway.server.slow_reader import SlowReaderTimeout
from gateway.settings import Settings
from gateway.time_slices import TIME_SLICE_SECONDS
from gateway_plugins.oip.grpc_api.call import STREAM_WINDOW, Call, ClientGone, trailers
from gateway_plugins.oip.grpc_api.call_starts import CallStarts
from gateway_plugins.oip.grpc_api.frames import BYTES_PER_CONTROL_FRAME, FRAME_BYTES, ConnectionFault, FrameGate
from gateway_plugins.oip.grpc_api.status import Failure, Metadata, failed, failure_of
from gateway_plugins.oip.settings import ProtocolSettings

CONNECTION_WINDOW = 1024 * 1024
"""Bytes that all calls of a connection may send before they are counted, which happens as they are parsed."""
IDLE_CONNECTION_SECONDS = 300.0
"""A connection without a call is closed after this time."""
CONNECTION_SECONDS, LAST_CALLS_SECONDS = 3_600.0, 600.0
"""A connection is closed after an hour, as soon as its calls have ended, at the latest after ten minutes more.

So clients find gateways that are new."""
PING_SECONDS, PING_TIMEOUT_SECONDS = 60.0, 20.0
"""A connection that is silent is tested after this time, and closed if the client does not answer."""
EARLY_CALLS = 256
"""Calls beyond the limit that a client may begin before it knows the limit; they are refused one by one."""
PING_DATA = b"gateway\0"
CONTENT_TYPE = b"application/grpc"


Handler = Callable[[Call], Awaitable[Metadata]]
"""Serves a call; returns its trailing metadata, and raises what becomes its status."""


class Owner(Protocol):
    """The server of a connection: what all connections of one process share."""

    settings: Settings
    limits: ProtocolSettings
    uploads: Pool
    responses: Pool
    connections: Connections
    starts: CallStarts
    upload_bound: Callable[[Sequence[tuple[bytes, bytes]]], Bound | None]
    is_stopping: bool

    def connect(self, connection: "GrpcConnection") -> None:
        """A connection has opened."""

    def disconnect(self, connection: "GrpcConnection") -> None:
        """A connection has closed."""

    def is_probe(self, path: bytes) -> bool:
        """Whether a call of this method is served on reserved connections."""

    def open(self, call: Call) -> Handler:
        """Take a slot for a call; raises Failure or Overloaded."""

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a call in a task."""


class GrpcConnection(asyncio.Protocol):
    """Owns a connection: its transport, its timer, HTTP/2's state, and the calls.

    It is a member of the same `Connections` as those of HTTP. `update` is called after every event that may change
    what the connection waits for.
    """

    transport: asyncio.Transport

    def __init__(self, server: Owner) -> None:
        self._server = server
        self.settings = settings = server.settings
        self.max_message_bytes = server.limits.grpc_max_message_bytes
        self.uploads, self.responses = server.uploads, server.responses
        self._loop = asyncio.get_running_loop()
        self._connections = server.connections
        self._gate = FrameGate(settings.max_header_bytes, self._loop.time)
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self._calls: dict[int, Call] = {}
        self._pending: dict[Call, None] = {}  # those with bytes to send, round-robin
        self._unacknowledged_bytes = 0
        self._parse_scheduled = self._is_paused = self._awaits = False
        self._writable = True
        self._opened_at = self._heard_at = self._idle_since = self._loop.time()
        self._partial_since: float | None = self._opened_at
        self._left_at: float | None = None
        self._pinged_at: float | None = None
        self._last_stream_id = 2**31 - 1
        self._timer: asyncio.TimerHandle | None = None
        self._slow_reader = SlowReaderTimeout(self._loop, settings.answer_timeout_seconds)
        self.address: tuple[str, int] | None = None
        self.pace = Pace(
            min_bytes_per_second=settings.min_upload_bytes_per_second,
            grace_seconds=settings.upload_grace_seconds,
            now=self._loop.time,
        )

    @property
    def is_stopping(self) -> bool:
        """Whether the server stops."""
        return self._server.is_stopping

    @property
    def is_watched(self) -> bool:
        """Whether a timer runs that will end what the connection waits for."""
        return self._timer is not None

    # asyncio's

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # always of this kind
        """Take a slot, and announce the limits."""
        self.transport = transport
        peer = transport.get_extra_info("peername")
        self.address = (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else None
        self._connections.add(self)
        self._server.connect(self)
        most = self._server.limits.grpc_max_calls
        initial: dict[SettingCodes, int] = {
            SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            SettingCodes.MAX_CONCURRENT_STREAMS: most + EARLY_CALLS,
            SettingCodes.MAX_FRAME_SIZE: FRAME_BYTES,
            SettingCodes.MAX_HEADER_LIST_SIZE: self.settings.max_header_bytes,
        }
        self._h2.local_settings = Http2Settings(client=False, initial_values=initial)
        self._h2.max_inbound_frame_size = FRAME_BYTES
        self._h2.decoder.max_header_list_size = self.settings.max_header_bytes
        self._h2.initiate_connection()
        self._h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: most})  # in force once the client knows it
        self.open_window(CONNECTION_WINDOW - self._h2.inbound_flow_control_window)
        self._flush()
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's
        """Stop the timers, release the slot, and cancel the calls."""
        self._server.disconnect(self)
        self._connections.remove(self)
        self._slow_reader.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for call in tuple(self._calls.values()):
            self._cancel(call)
        self._pending.clear()

    def data_received(self, data: bytes) -> None:
        """Parse now, or after what came before."""
        self._heard_at = self._loop.time()
        self._pinged_at = None
        self.pace.receive(len(data))
        self._gate.feed(data)
        if not self._parse_scheduled:
            self._parse()

    def pause_writing(self) -> None:
        """The client reads more slowly than the calls write; what it sends is not parsed meanwhile."""
        self._writable = False
        self._slow_reader.start(self.transport)
        self.update()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._writable = True
        self._slow_reader.stop()
        self._pump()
        self._flush()
        if self._gate.has_more:
            self._schedule_parse()
        self.update()

    # For calls

    def open_window(self, nbytes: int, stream_id: int | None = None) -> None:
        """Let the client send more of one call, or of all."""
        if stream_id is None or stream_id in self._calls:
            self._h2.increment_flow_control_window(nbytes, stream_id)
            self._flush()

    def pump(self, call: Call) -> None:
        """Send what the client's windows take of a call's message; raises ClientGone."""
        if call.stream_id not in self._calls:
            raise ClientGone
        if not call.outgoing.started:
            call.outgoing.started = True
            headers = [(b":status", b"200"), (b"content-type", CONTENT_TYPE), (b"grpc-accept-encoding", b"identity")]
            self._h2.send_headers(call.stream_id, headers)
        self._pending[call] = None
        self._pump()
        self._flush()

    def update(self) -> None:
        """Decide whether the socket is read, what the connection waits for, and when its timer ends."""
        if self.transport.is_closing():
            return
        is_paused = self._parse_scheduled or not self._writable
        if is_paused is not self._is_paused:
            self._is_paused = is_paused
            if is_paused:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()
        calls = self._calls.values()
        if not self._writable or (calls and all(call.outgoing.pending_bytes for call in calls)):
            self._connections.stall(self)
        else:
            self._connections.read_on(self)
        awaits = bool(calls) and all(call.awaits_client for call in calls)
        if awaits and not self.pace.is_idle:
            self.pace.wait()
            self._connections.await_client(self)
        elif self._awaits and not awaits:
            self.pace.receive(0)
            self._connections.serve(self)
        self._awaits = awaits

    # For the server, and for other clients

    def displace(self, error: Overloaded) -> None:
        """Another client needs the slot: end the calls with this error, and close the connection."""
        for call in tuple(self._calls.values()):
            call.end(error)
        self.leave()

    def leave(self) -> None:
        """Take no new calls, and close the connection once the open ones have ended."""
        if self._left_at is None and not self.transport.is_closing():
            self._left_at = self._loop.time()
            self._last_stream_id = self._h2.highest_inbound_stream_id
            # Not by h2, which would send nothing more.
            self.transport.write(GoAwayFrame(0, self._last_stream_id, int(ErrorCodes.NO_ERROR)).serialize())
        if not self._calls:
            self._close()
        else:
            self._arm()

    def stop(self) -> None:
        """The server stops: calls whose clients do not read have IDLE_SECONDS left."""
        for call in self._calls.values():
            call.wake()
        self.leave()

    # Parsing

    def _schedule_parse(self) -> None:
        if not self._parse_scheduled:
            self._parse_scheduled = True
            self._loop.call_soon(self._parse)

    def _parse(self) -> None:
        self._parse_scheduled = False
        ends = time.perf_counter() + TIME_SLICE_SECONDS
        try:
            while self._writable and not self.transport.is_closing():
                frames = self._gate.take()
                if not frames:
                    break
                self._partial_since = None
                self._take_all(self._h2.receive_data(frames))
                self._flush()
                if self._gate.has_more and time.perf_counter() > ends:
                    self._schedule_parse()
                    break
        except ConnectionFault as fault:
            self._fail(fault.code)
        except ProtocolError:  # h2 has prepared GOAWAY
            self._fail(None)
        if self._gate.client_leaves:
            self.leave()
        is_partial = self._gate.is_partial and not self._parse_scheduled and self._writable
        if not is_partial:
            self._partial_since = None
        elif self._partial_since is None:
            self._partial_since = self._loop.time()
            self._arm()
        self.update()

    def _take_all(self, events: Sequence[Event]) -> None:
        """Handle events; nothing may be sent in a call that the client has reset, which h2 knows already."""
        reset = {event.stream_id for event in events if isinstance(event, StreamReset)}
        for stream_id in reset:
            if (call := self._calls.get(stream_id or 0)) is not None:
                self._cancel(call)
        for event in events:
            if not (isinstance(event, RequestReceived) and event.stream_id in reset):
                self._take(event)

    def _take(self, event: Event) -> None:
        match event:
            case DataReceived(stream_id=int(stream_id)):
                nbytes = event.flow_controlled_length or 0
                self._unacknowledged_bytes += nbytes
                if self._unacknowledged_bytes >= CONNECTION_WINDOW // 2:
                    self.open_window(self._unacknowledged_bytes)
                    self._unacknowledged_bytes = 0
                if (call := self._calls.get(stream_id)) is not None:
                    call.incoming.receive(event.data or b"", nbytes)
            case RequestReceived():
                self._begin(event.stream_id or 0, event.headers or [])
            case StreamEnded(stream_id=int(stream_id)):
                if (call := self._calls.get(stream_id)) is not None:
                    call.incoming.end()
            case WindowUpdated() | RemoteSettingsChanged():
                self._pump()
            case _:
                pass

    def _begin(self, stream_id: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Begin a call, or refuse it."""
        pseudo = {name: value for name, value in headers[:8] if name.startswith(b":")}
        content_type = next((value for name, value in headers if name == b"content-type"), b"")
        if stream_id > self._last_stream_id:
            self._reset(stream_id, ErrorCodes.REFUSED_STREAM)
        elif pseudo.get(b":method") != b"POST" or not content_type.startswith(CONTENT_TYPE):
            status = b"415" if pseudo.get(b":method") == b"POST" else b"405"
            self._h2.send_headers(stream_id, [(b":status", status)], end_stream=True)
            self._reset(stream_id, ErrorCodes.NO_ERROR)
        elif len(headers) > (most := self.settings.max_headers):
            sentence = f"A call may have at most {most:,} headers."
            self._refuse(stream_id, failure_of(HeadersTooLarge(sentence, limit="max_headers", value=most)))
        else:
            self._start(stream_id, pseudo.get(b":path", b""), headers)

    def _start(self, stream_id: int, path: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
        if not self._connections.start(self, health=self._server.is_probe(path)):
            self._refuse(stream_id, failure_of(self._connections.full()))
            self.leave()
            return
        call = Call(self, stream_id, path, headers, key_bound=self._server.upload_bound(headers))
        try:
            handle = self._server.open(call)
        except Exception as error:  # each error becomes a status
            call.close()
            self._refuse(stream_id, failed(error))
            if not self._calls:
                self._end_calls()
            return
        self._calls[stream_id] = call
        call.task = self._server.start(self._run(call, handle))

    async def _run(self, call: Call, handle: Handler) -> None:
        """Serve a call and send its status."""
        code, message = grpc.StatusCode.OK, ""
        trailing: Metadata = ()
        is_reset = False
        call.has_begun = True
        try:
            async with asyncio.timeout(call.timeout_seconds):
                call.check()
                await self._server.starts.wait(self)
                call.is_handled = True
                try:
                    trailing = await handle(call)
                except Exception:
                    await call.linger()
                    raise
        except TimeoutError:
            code, message = grpc.StatusCode.DEADLINE_EXCEEDED, "The deadline of the call has passed."
        except ClientGone:
            is_reset = True
        except asyncio.CancelledError:
            if call.error is None or call.stream_id not in self._calls:
                is_reset = True
            else:
                failure = failed(call.error)
                code, message, trailing = failure.code, failure.message, failure.trailing
        except Exception as error:  # each error becomes a status
            failure = failed(error)
            code, message, trailing = failure.code, failure.message, failure.trailing
        finally:
            call.close()
            self._pending.pop(call, None)
        if self._calls.pop(call.stream_id, None) is None:
            return  # the client has ended the call
        if is_reset:
            self._reset(call.stream_id, ErrorCodes.CANCEL)
        else:
            self._finish(call, code, message, trailing)
        self._flush()
        if not self._calls:
            self._end_calls()
        self.update()

    def _finish(self, call: Call, code: grpc.StatusCode, message: str, trailing: Metadata) -> None:
        headers = trailers(code, message, trailing)
        if not call.outgoing.started:
            headers = [(b":status", b"200"), (b"content-type", CONTENT_TYPE), *headers]
        try:
            self._h2.send_headers(call.stream_id, headers, end_stream=True)
        except ProtocolError:  # the connection or the stream was closed meanwhile
            return
        if not call.incoming.ended:
            self._reset(call.stream_id, ErrorCodes.NO_ERROR)

    def _refuse(self, stream_id: int, failure: Failure) -> None:
        """Answer a call that does not begin."""
        status = trailers(failure.code, failure.message, failure.trailing)
        self._h2.send_headers(
            stream_id, [(b":status", b"200"), (b"content-type", CONTENT_TYPE), *status], end_stream=True
        )
        self._reset(stream_id, ErrorCodes.NO_ERROR)

    def _reset(self, stream_id: int, code: ErrorCodes) -> None:
        try:
            self._h2.reset_stream(stream_id, code)
        except ProtocolError:  # it is closed already, on both sides
            return

    def _cancel(self, call: Call) -> None:
        """The client has ended a call."""
        self._calls.pop(call.stream_id, None)
        self._pending.pop(call, None)
        call.cancel()
        if not self._calls:
            self._end_calls()

    def _end_calls(self) -> None:
        """No call is open."""
        self._idle_since = self._loop.time()
        self._connections.idle(self)
        if self._left_at is not None or self._connections.reserves(self):
            self.leave()
        else:
            self._arm()

    # Writing

    def _pump(self) -> None:
        """Send pending bytes of the calls, a frame of each in turn, while the client takes them."""
        blocked = 0
        while self._writable and blocked < len(self._pending):
            call = next(iter(self._pending))
            del self._pending[call]
            nbytes = min(self._h2.local_flow_control_window(call.stream_id), self._h2.max_outbound_frame_size)
            if nbytes > 0 and call.outgoing.pending_bytes:
                data = call.outgoing.take(nbytes)
                self._h2.send_data(call.stream_id, data)
                self._gate.control.restore(len(data) / BYTES_PER_CONTROL_FRAME)
                self._flush()
                blocked = 0
            else:
                blocked += 1
            if call.outgoing.pending_bytes:
                self._pending[call] = None

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and not self.transport.is_closing():
            self.transport.write(data)

    def _fail(self, code: ErrorCodes | None) -> None:
        """End the connection of a client that breaks the protocol or a limit; None if h2 has prepared GOAWAY."""
        if code is not None:
            self.transport.write(GoAwayFrame(0, self._h2.highest_inbound_stream_id, int(code)).serialize())
        self._flush()
        self._close()
        for call in tuple(self._calls.values()):
            self._cancel(call)

    def _close(self) -> None:
        """Close the connection once the client has read what was written."""
        if not self.transport.is_closing():
            self.transport.close()
            self._slow_reader.start(self.transport)

    # The timer

    def _ends(self) -> float:
        """When the client has waited for too long, or the gateway for it."""
        if self._left_at is not None:
            return self._left_at + LAST_CALLS_SECONDS
        ends = min(self._opened_at + CONNECTION_SECONDS, self._partial_ends())
        if self._pinged_at is not None:
            ends = min(ends, self._pinged_at + PING_TIMEOUT_SECONDS)
        elif self._calls:
            ends = min(ends, self._heard_at + PING_SECONDS)
        else:
            is_reserved = self._connections.reserves(self)
            ends = min(ends, self._idle_since + (RESERVE_SECONDS if is_reserved else IDLE_CONNECTION_SECONDS))
        return ends

    def _partial_ends(self) -> float:
        """When the rest of the preface, of a frame or of a header block must have arrived."""
        if self._partial_since is None:
            return math.inf
        is_reserved = self._connections.reserves(self)
        return self._partial_since + (RESERVE_SECONDS if is_reserved else self.settings.upload_idle_timeout_seconds)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.transport.is_closing():  # then the slow-reader timeout ends it
            self._timer = self._loop.call_at(self._ends(), self._expire)

    def _expire(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        now = self._loop.time()
        if now < self._ends():
            self._arm()
        elif self._left_at is not None or self._pinged_at is not None:
            self.transport.abort()
        elif now >= self._partial_ends():
            metrics.CONNECTIONS_CLOSED.labels("idle").inc()
            self._fail(ErrorCodes.ENHANCE_YOUR_CALM)
        elif not self._calls or now >= self._opened_at + CONNECTION_SECONDS:
            self.leave()
        else:
            self._pinged_at = now
            self._h2.ping(PING_DATA)
            self._flush()
            self._arm()
