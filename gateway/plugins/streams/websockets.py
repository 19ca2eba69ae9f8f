"""WebSockets of streams: uvicorn's protocol, with bounds of memory and the gateway's rules for connections."""

import asyncio
import logging
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.protocol import CONNECTING, OPEN, State
from websockets.server import ServerProtocol

from gateway.errors import Overloaded
from gateway.limits.pools import PoolLease, Uploader
from gateway.server.connection import Connection, Needs, Phase, error_response
from gateway.server.connections import Wait

MAX_FRAGMENTS = 1_024
"""Frames in which one message may come; empty ones would cost memory that no size bounds."""
CLOSE_SECONDS = 10.0
"""How long a client may take to answer a close frame."""
NORMAL, INVALID_DATA, POLICY, INTERNAL, GOING_DOWN, TRY_AGAIN = 1000, 1007, 1008, 1011, 1012, 1013
"""Close codes of IANA's registry; GOING_DOWN is "Service Restart"."""
NO_ROOM = 4503
"""The close code that the application sees, and not the client, when the client's messages took too much memory."""


class StreamProtocol(WebSocketsSansIOProtocol):
    """Parses while no message waits for the application and the client reads its messages.

    The bytes of an incomplete message, and of one that waits for the application, count among the uploads' bytes.
    """

    cheap_bytes = 0

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.config, connection.server_state, connection.app_state, connection.loop)
        self.logger = logging.getLogger("websockets.server")  # the gateway logs its own event for each stream
        self.conn = self._parser(CONNECTING)
        self.close_timeout = CLOSE_SECONDS
        self._connection = connection
        self._buffer: PoolLease = connection.runtime.uploads.lease(Uploader(connection.pace, self.evict))
        self.writable = connection.writable
        self._partial_bytes = self._waiting_bytes = 0  # of an incomplete message, and of the waiting ones
        self._receives = self._discards = False

    def _parser(self, state: State) -> ServerProtocol:
        return ServerProtocol(state=state, max_size=self.config.ws_max_size, logger=self.logger)

    @property
    def parses(self) -> bool:
        """See Handler."""
        return self.handshake_complete and not self.read_paused and self.writable.is_set()

    def needs(self) -> Needs:
        """See Handler."""
        reads = not self.read_paused and self.writable.is_set()
        return Needs(Phase.OPEN, reads, Wait.MORE if self._receives and self.queue.empty() else None)

    def feed(self, piece: memoryview) -> None:
        """Parse some bytes of messages."""
        if self._discards:
            return
        self._partial_bytes += len(piece)
        self.data_received(bytes(piece))
        self._hold()

    def expire(self) -> None:
        """See Handler; an open WebSocket has other timers."""

    def _hold(self) -> None:
        try:
            self._buffer.hold(self._connection.unparsed_bytes + self._partial_bytes + self._waiting_bytes)
        except Overloaded as error:
            self.evict(error)

    async def receive(self) -> Any:  # noqa: ANN401  # see uvicorn
        """See ASGI."""
        self._receives = waits = self.queue.empty()
        if waits:
            self._connection.update_reading()
        try:
            message = await super().receive()
        finally:
            self._receives = False
            if waits or self.queue.empty():  # otherwise nothing has changed
                self._connection.update_reading()
        self._waiting_bytes -= _payload_bytes(message)
        self._hold()
        return message

    async def send(self, message: Any) -> None:  # noqa: ANN401
        """See ASGI: after the connection's end, a message is dropped, with an OSError.

        A response to the handshake is dropped without an error: the next `receive` returns the disconnect.
        """
        while not self.writable.is_set():  # it may be cleared again before this task continues
            await self.writable.wait()
        if not (self.close_sent or self.transport.is_closing()):
            await super().send(message)
            self.handshake_complete |= self.close_sent  # by a refusal, which uvicorn does not count as an answer
            self._connection.update_reading()
        elif message["type"] in ("websocket.send", "websocket.close"):
            raise ClientDisconnected
        else:
            self.handshake_complete = True  # it needs no answer

    def send_receive_event_to_app(self) -> None:
        """Count a complete message; a text must be UTF-8."""
        self._partial_bytes = 0
        data = b"".join(self.frames)
        try:
            message = {self.curr_msg_data_type: data.decode() if self.curr_msg_data_type == "text" else data}
        except UnicodeDecodeError:
            self._fail(INVALID_DATA, "the text is not UTF-8")
        else:
            self._waiting_bytes += 0 if self.close_sent else _payload_bytes(message)
            super().send_receive_event_to_app()

    def handle_cont(self, event: Frame) -> None:
        """Limit the fragments of a message."""
        if len(self.frames) < MAX_FRAGMENTS:
            super().handle_cont(event)
        elif not self.close_sent:
            self._fail(POLICY, f"a message may have at most {MAX_FRAGMENTS:,} parts")

    def handle_ping(self) -> None:
        """Answer; a ping is not part of a message."""
        self._partial_bytes = sum(map(len, self.frames))
        super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        """As `handle_ping`."""
        self._partial_bytes = sum(map(len, self.frames))
        super().handle_pong(event)

    def _fail(self, code: int, reason: str) -> None:
        self.conn.fail(code, reason)
        self.handle_parser_exception()

    def handle_parser_exception(self) -> None:
        """End the connection of a client that does not follow the protocol."""
        if self.conn.close_sent is None:
            self.transport.close()  # in the midst of its handshake
        else:
            super().handle_parser_exception()

    def keepalive_timeout(self) -> None:
        """A pong cannot be heard while the gateway does not read."""
        if self.read_paused or not self.writable.is_set():
            self.pong_timer = self.pending_ping_payload = None
            self.schedule_ping()
        else:
            super().keepalive_timeout()

    def evict(self, error: Overloaded) -> None:  # noqa: ARG002  # the application raises it, see NO_ROOM
        """The client's messages exceed the available memory: discard them, and let the application close."""
        self._discards = True
        if self.handshake_complete:
            self.conn = self._parser(OPEN)  # with nothing of a partial frame
        self._drop()
        self.queue.put_nowait({"type": "websocket.disconnect", "code": NO_ROOM})
        self.read_paused = False
        self._connection.update_reading()

    def _drop(self) -> None:
        """Discard everything that the client has sent."""
        self.frames = []
        self._partial_bytes = self._waiting_bytes = 0
        messages = [self.queue.get_nowait() for _ in range(self.queue.qsize())]
        for message in messages:
            if message["type"] == "websocket.connect":
                self.queue.put_nowait(message)
        self._buffer.hold(0)

    def displace(self, error: Overloaded) -> None:
        """See Handler."""
        self.queue.put_nowait({"type": "websocket.disconnect", "code": TRY_AGAIN})
        if not self.transport.is_closing():
            if not self.handshake_complete:
                self.transport.write(error_response(error))
            elif not self.close_sent:
                self.conn.send_close(TRY_AGAIN, error.code)
                self.transport.write(b"".join(self.conn.data_to_send()))
        self.handshake_complete = self.close_sent = self.disconnected = True
        self.transport.close()
        self._connection.slow_reader.start()

    def on_task_complete(self, task: "asyncio.Task[None]") -> None:
        """A client that does not read its last message is disconnected."""
        super().on_task_complete(task)
        self._connection.slow_reader.start()

    def shutdown(self) -> None:
        """Let the application finish the current message, and close."""
        if self.handshake_complete and not self.close_sent:
            self.stop_keepalive()
            self.queue.put_nowait({"type": "websocket.disconnect", "code": GOING_DOWN})
        else:
            super().shutdown()

    def lost(self) -> None:
        """Release everything."""
        self._drop()
        self._buffer.release()
        self.connection_lost(None)
        self.conn.receive_eof()  # ends its parser
        error: BaseException | None
        for error in (self.conn.parser_exc, self.conn.handshake_exc):
            while error is not None:
                # Its frames keep the connection, which keeps the error.
                error.__traceback__, error = None, error.__context__


def _payload_bytes(message: Any) -> int:  # noqa: ANN401  # an ASGI event
    return len(message.get("bytes") or message.get("text") or b"")
