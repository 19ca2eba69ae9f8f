"""WebSocket (RFC 6455): the messages of one client as ASGI messages, within bounds."""

import asyncio
from collections import deque
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import structlog
from starlette.types import Message
from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from gateway.errors import AlreadyLogged, InternalError, Overloaded, clear_frames
from gateway.limits.pool_clients import UploadingClient
from gateway.limits.pools import PoolLease
from gateway.server.cycle import head
from gateway.server.handler import Needs, Phase, ServedConnection
from gateway.server.refusals import whole
from gateway.time_slices import TimeSlice

MAX_FRAGMENTS = 1_024
"""Frames in which one message may come; empty ones would cost memory that no size bounds."""
NORMAL, INVALID_DATA, POLICY, INTERNAL, GOING_DOWN, TRY_AGAIN = 1000, 1007, 1008, 1011, 1012, 1013
"""Close codes of IANA's registry; GOING_DOWN is "Service Restart"."""
ABNORMAL = 1006
"""What the application sees when the connection is lost without a close frame."""
NO_ROOM = 4503
"""What the application sees, and not the client, when the client's messages took more memory than there is."""

log = structlog.get_logger("gateway")


class ClientDisconnected(OSError):
    """The application sends to a client that is gone (ASGI's WebSocket specification, 2.4)."""


class WebSocketHandler(UploadingClient):
    """Runs the application for one WebSocket.

    Parses while no message waits for the application and the client reads what is sent to it. The bytes of a message
    that is not complete, or that waits for the application, count among those of all uploads.
    """

    piece_bytes = 4 * 1024

    def __init__(self, connection: ServedConnection, scope: dict[str, Any]) -> None:
        self._connection = connection
        self.pace = connection.pace
        self._scope = scope
        self._task: asyncio.Task[None] | None = None
        self._protocol = self._new_protocol()
        self._fragments: list[bytes] = []
        self._opcode = Opcode.BINARY
        self._unparsed_bytes = 0  # of a frame that is not complete
        self._waiting_bytes = 0  # of messages for the application
        self._messages: deque[Message] = deque([{"type": "websocket.connect"}])
        self._disconnect: Message | None = None
        """What the application receives behind the messages; nothing that the client sends is of interest any more."""
        self._changed = asyncio.Event()
        self._accepted = self._close_sent = False
        self._discards = False  # the client's messages, once they took more memory than there is
        self._denial: tuple[int, list[tuple[bytes, bytes]]] | None = None
        self._denial_body = b""
        self._heard = True  # since the last ping
        self._turn = TimeSlice()
        self._buffer: PoolLease = connection.app_state["uploads"].lease(self)
        self._handshake: list[tuple[bytes, bytes]] = []

    @property
    def runs(self) -> bool:
        """See Handler."""
        return self._task is not None and not self._task.done()

    @property
    def parses(self) -> bool:
        """See Handler."""
        if self._disconnect is not None:
            return True
        return self._accepted and not self._messages and self._connection.writable.is_set()

    def needs(self) -> Needs:
        """See Handler. Until the application accepts, the socket is read to notice that the client has gone."""
        parses, open_phase = self.parses, Phase.OPEN if self._accepted else Phase.SERVING
        return Needs(
            Phase.CLOSING if self._close_sent else open_phase,
            parses,
            reads=parses or not self._accepted,
            awaits_client=parses,
        )

    def open(self) -> None:
        """Check the handshake, and run the application; refuse the connection where the handshake is wrong."""
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self._scope["headers"]]
        path = self._scope["raw_path"].decode("ascii")
        protocol = ServerProtocol()
        response = protocol.accept(Request(path, Headers(headers)))
        if protocol.handshake_exc is not None:
            clear_frames(protocol.handshake_exc)
            protocol.handshake_exc = None  # its traceback keeps this frame
        self._handshake = _encoded(item for item in response.headers.raw_items() if item[0] != "Date")
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            self._disconnect = _disconnect(ABNORMAL)
            lines = head(response.status_code, [*self._default_headers, *self._handshake])
            self._connection.finish_with(lines + b"\r\n" + (response.body or b""))
            return
        offered = [value for name, value in headers if name == "sec-websocket-protocol"]
        self._scope["subprotocols"] = [token.strip() for value in offered for token in value.split(",")]
        self._scope["extensions"] = {"websocket.http.response": {}}
        self._scope["state"] = self._connection.app_state.copy()
        self._task = self._connection.start(self._run())

    def feed(self, piece: memoryview) -> None:
        """Parse frames, and answer pings."""
        self._heard = True
        if self._discards:
            return
        protocol = self._protocol
        protocol.receive_data(bytes(piece))
        self._unparsed_bytes += len(piece)
        for frame in protocol.events_received():
            assert isinstance(frame, Frame)
            # A client may spend more bytes on a length than it takes; then this is too much until the next frame.
            self._unparsed_bytes = max(0, min(self._unparsed_bytes - _wire_bytes(frame), len(piece)))
            self._take(frame)
        self._flush()
        if protocol.parser_exc is not None and protocol.close_sent is not None:
            self._leave(protocol.close_sent.code, protocol.close_sent.reason)
            self._connection.finish()
        self._count()

    def expire(self) -> None:
        """Ping a client that was not heard, or give it up."""
        if self._close_sent:
            self._connection.close()
        elif self._heard or not self.parses:  # while the gateway does not read, a pong cannot be heard
            self._heard = False
            self._protocol.send_ping(b"")
            self._flush()
        else:
            self._fail(INTERNAL, "keepalive ping timeout")

    def displace(self, error: Overloaded) -> None:
        """See Handler."""
        self._leave(TRY_AGAIN if self._accepted else ABNORMAL)
        if not self._accepted:
            self._connection.refuse(error)
        elif self._close_sent:
            self._connection.transport.abort()
        else:
            self._protocol.send_close(TRY_AGAIN, error.code)
            self._close_sent = True
            self._connection.finish_with(b"".join(self._protocol.data_to_send()))

    def evict(self, error: Overloaded) -> None:  # noqa: ARG002  # the application raises it, see NO_ROOM
        """The client's messages take more memory than there is: discard them, and let the application close."""
        self._drop()
        self._discards = True
        self._protocol = self._new_protocol()  # with nothing of a frame that is not complete
        self._leave(NO_ROOM)
        self._connection.update_reading()

    def shutdown(self) -> None:
        """Let the application finish what it has begun, and close."""
        self._leave(GOING_DOWN)

    def lost(self) -> None:
        """See Handler."""
        self._drop()
        self._leave(ABNORMAL)
        self._buffer.release()
        self._protocol.receive_eof()
        if self._protocol.parser_exc is not None:
            clear_frames(self._protocol.parser_exc)

    async def _run(self) -> None:
        code = INTERNAL
        try:
            await self._connection.connections.first_requests.wait(self._connection)
            if self._connection.is_closing:  # meanwhile
                return
            await self._connection.app(self._scope, self._receive, self._send)
            code = NORMAL
        except ClientDisconnected:
            pass
        except Exception as exc:
            if not isinstance(exc, AlreadyLogged):
                log.exception("unexpected_error")
        finally:
            if not self._connection.is_closing:
                if self._accepted:
                    self._close(code, "")
                else:
                    self._leave(ABNORMAL)
                    self._connection.refuse(InternalError())

    async def _receive(self) -> Message:
        await self._turn.pause_if_over()  # there may be hundreds of small messages
        while not self._messages:
            if self._disconnect is not None:
                return self._disconnect
            self._changed.clear()
            await self._changed.wait()
        message = self._messages.popleft()
        self._waiting_bytes -= _payload_bytes(message)
        self._count()
        self._connection.update_reading()
        return message

    async def _send(self, message: Message) -> None:
        await self._connection.writable.wait()
        match message["type"]:
            case "websocket.send" if self._accepted:
                self._send_message(message)
            case "websocket.close" if self._accepted:
                self._close(message.get("code", NORMAL), message.get("reason") or "")
            case _ if self._connection.is_closing:
                return  # the application sees it when it receives the next message
            case "websocket.accept":
                self._accept(message)
            case "websocket.close":
                self._leave(ABNORMAL)
                self._connection.finish_with(whole(HTTPStatus.FORBIDDEN, self._default_headers, b""))
            case "websocket.http.response.start":
                self._denial = int(message["status"]), list(message.get("headers", ()))
            case "websocket.http.response.body" if self._denial is not None:
                self._denial_body += message.get("body", b"")
                if not message.get("more_body", False):
                    self._deny(*self._denial)
            case kind:
                raise RuntimeError(f"unexpected {kind}")

    def _accept(self, message: Message) -> None:
        headers = [*self._default_headers, *self._handshake, *message.get("headers", ())]
        if subprotocol := message.get("subprotocol"):
            headers.append((b"sec-websocket-protocol", subprotocol.encode()))
        lines = head(HTTPStatus.SWITCHING_PROTOCOLS, headers)
        self._accepted = True
        self._connection.transport.write(lines + b"\r\n")
        self._connection.update_reading()

    def _deny(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._leave(ABNORMAL)
        framing = (b"content-length", b"connection")
        headers = [header for header in headers if header[0].lower() not in framing]
        self._connection.finish_with(whole(status, [*self._default_headers, *headers], self._denial_body))

    def _send_message(self, message: Message) -> None:
        if self._close_sent or self._connection.is_closing:
            raise ClientDisconnected
        text, data = message.get("text"), message.get("bytes")
        if data is not None:
            self._protocol.send_binary(data)
        elif text is not None:
            self._protocol.send_text(text.encode())
        self._flush()

    def _close(self, code: int, reason: str) -> None:
        """Send a close frame, and wait for the client's."""
        if self._close_sent or self._connection.is_closing:
            return
        self._protocol.send_close(code, reason)
        self._close_sent = True
        self._leave(code, reason)
        self._drop()
        self._flush()
        self._connection.update_reading()

    def _fail(self, code: int, reason: str) -> None:
        """End the connection of a client that does not follow the protocol."""
        if not self._connection.is_closing:
            self._leave(code, reason)
            self._protocol.fail(code, reason)
            self._flush()
            self._connection.finish()

    def _take(self, frame: Frame) -> None:
        if frame.opcode is Opcode.CLOSE:
            self._take_close()
        elif self._disconnect is None and frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            if frame.opcode is not Opcode.CONT:
                self._opcode = frame.opcode
            self._fragments.append(bytes(frame.data))
            if len(self._fragments) > MAX_FRAGMENTS:
                self._fail(POLICY, f"a message may have at most {MAX_FRAGMENTS:,} parts")
            elif frame.fin:
                self._take_message()

    def _take_message(self) -> None:
        data = self._fragments[0] if len(self._fragments) == 1 else b"".join(self._fragments)
        self._fragments = []
        message: Message = {"type": "websocket.receive", "bytes": data}
        if self._opcode is Opcode.TEXT:
            try:
                message = {"type": "websocket.receive", "text": data.decode()}
            except UnicodeDecodeError:
                self._fail(INVALID_DATA, "the text is not UTF-8")
                return
        self._messages.append(message)
        self._waiting_bytes += _payload_bytes(message)
        self._changed.set()

    def _take_close(self) -> None:
        """The client has sent its close frame; the library has answered it, if it was the first one."""
        if self._close_sent:
            self._connection.close()
            return
        received = self._protocol.close_rcvd
        self._leave(received.code if received else ABNORMAL, received.reason if received else "")
        self._flush()
        self._connection.finish()

    def _leave(self, code: int, reason: str = "") -> None:
        """Notify the application that the connection ends, and why; the first reason counts."""
        if self._disconnect is None:
            self._disconnect = _disconnect(code, reason)
            self._changed.set()

    def _drop(self) -> None:
        """Hold nothing that the client has sent."""
        self._messages = deque(message for message in self._messages if message["type"] == "websocket.connect")
        self._fragments = []
        self._unparsed_bytes = self._waiting_bytes = 0
        self._buffer.hold(0)

    def _count(self) -> None:
        """Count what is held: of a frame or a message that is not complete, and of messages for the application."""
        if self._disconnect is not None:
            self._buffer.hold(0)
            return
        try:
            self._buffer.hold(self._unparsed_bytes + sum(map(len, self._fragments)) + self._waiting_bytes)
        except Overloaded as error:
            self.evict(error)

    def _flush(self) -> None:
        """Write what the library has to send."""
        data = b"".join(self._protocol.data_to_send())
        if data and not self._connection.is_closing:
            self._connection.transport.write(data)

    @property
    def _default_headers(self) -> list[tuple[bytes, bytes]]:
        return self._connection.server_state.default_headers

    def _new_protocol(self) -> ServerProtocol:
        return ServerProtocol(state=OPEN, max_size=self._connection.settings.stream_frame_bytes)


def _encoded(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]


def _disconnect(code: int, reason: str = "") -> Message:
    return {"type": "websocket.disconnect", "code": code, "reason": reason}


def _payload_bytes(message: Message) -> int:
    return len(message.get("bytes") or message.get("text") or b"")


def _wire_bytes(frame: Frame) -> int:
    """The bytes that a client's frame takes at least: two, the length, the mask and the payload."""
    nbytes = len(frame.data)
    return nbytes + (6 if nbytes < 126 else 8 if nbytes < 65_536 else 14)
