"""uvicorn's WebSocket protocol (RFC 6455) with bounds on what a client sends, and on how slowly it reads."""

import time
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from gateway.errors import Overloaded
from gateway.inference.buffer import UploadBuffer
from gateway.inference.pace import Pace
from gateway.server.connections import Connections
from gateway.server.reading import ReadingWatch
from gateway.settings import Settings
from gateway.turns import TURN_SECONDS

PATH = b"/stream"
"""The one path at which a WebSocket may be opened."""
PIECE_BYTES = 4 * 1024
"""How much is parsed before others may have a turn: of the smallest messages, some milliseconds' worth."""
MAX_FRAGMENTS = 1_024
"""Parts in which one message may come; empty ones would cost memory that no size bounds."""
GOING_DOWN = 1012  # "Service Restart" in IANA's registry of close codes
POLICY = 1008
CLOSING_SECONDS = 5.0
"""How long a client that had to make room gets to read why."""
NO_ROOM = 4503
"""Told to the stream, not to the client: its messages had to make room for others."""


class BoundedWebSocketProtocol(WebSocketsSansIOProtocol):
    """A connection that was upgraded; it keeps its place among the process's connections.

    Parses for TURN_SECONDS at a time, and nothing while a message waits for its reader or the client does not read. A
    client that reads too slowly is cut off: see ReadingWatch. What has come of a message, and the one that waits for
    its reader, count among the bytes of all uploads.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401  # uvicorn's
        super().__init__(*arguments, **options)
        settings: Settings = self.app_state["settings"]
        self._counted: Connections = self.app_state["connections"]
        self._reading = ReadingWatch(self.loop, settings.answer_timeout_seconds)
        self._held = bytearray()  # received and not parsed yet
        self._going_on = False
        self._message_bytes = 0  # of the message that waits for its reader
        self._pace = Pace(
            min_bytes_per_second=settings.min_upload_bytes_per_second,
            grace_seconds=settings.upload_grace_seconds,
            now=self.loop.time,
        )
        uploads: UploadBuffer = self.app_state["uploads"]
        self._buffer = uploads.open(self._pace)
        self._buffer.on_refusal = self._make_room
        self._no_room = False

    def connection_lost(self, exc: Exception | None) -> None:
        """Make room."""
        self._counted.remove(self)
        self._reading.stop()
        self._held.clear()
        self._buffer.hold(0)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, or keep what comes while something else has its turn."""
        if self._no_room:
            return
        self._pace.receive(len(data))
        self._held += data
        if not self._going_on:
            self._go_on()

    async def receive(self) -> Any:  # noqa: ANN401  # uvicorn's
        """The next message; then what came behind it may be parsed."""
        message = await super().receive()
        self._message_bytes = 0
        self._count()
        if self._held and not self._going_on:
            self._going_on = True
            self.loop.call_soon(self._go_on)
        return message

    def handle_cont(self, event: Frame) -> None:
        """Take a part of a message, if there are not too many."""
        if len(self.frames) >= MAX_FRAGMENTS:
            self._refuse(f"a message may have at most {MAX_FRAGMENTS} parts")
        elif not self.close_sent:
            super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        """A message is complete."""
        self._message_bytes = sum(map(len, self.frames))
        super().send_receive_event_to_app()

    def pause_writing(self) -> None:
        """The client reads too slowly: neither its messages nor its pings are taken meanwhile."""
        super().pause_writing()
        self._regulate()
        self._reading.begin(self.transport)

    def resume_writing(self) -> None:
        """It has caught up."""
        super().resume_writing()
        self._reading.stop()
        self._go_on()

    def shutdown(self) -> None:
        """Tell the stream that the server stops: it answers what it has begun, and closes."""
        if self.handshake_complete and not self.close_sent:
            self.queue.put_nowait({"type": "websocket.disconnect", "code": GOING_DOWN, "reason": ""})
        else:
            super().shutdown()

    def _go_on(self) -> None:
        """Parse until a message is complete or the turn is over."""
        self._going_on = False
        ends = time.perf_counter() + TURN_SECONDS
        while self._held and not self._blocked:
            piece = bytes(self._held[:PIECE_BYTES])
            del self._held[:PIECE_BYTES]
            super().data_received(piece)
            if self._held and time.perf_counter() > ends:
                self._going_on = True
                self.loop.call_soon(self._go_on)
                break
        self._regulate()
        self._count()

    def _count(self) -> None:
        """Count what is held: not parsed yet, of a message that is not complete, and of one that nobody has taken."""
        if self._no_room or self.disconnected:
            return
        parts_bytes = len(self.conn.reader.buffer) + sum(map(len, self.frames))
        try:
            self._buffer.hold(len(self._held) + parts_bytes + self._message_bytes)
        except Overloaded:
            self._make_room()

    def _make_room(self) -> None:
        """Hold nothing more of this client, and tell the stream why; it closes the connection."""
        if self._no_room:
            return
        self._no_room = True
        self._held.clear()
        self.frames = []
        self.conn.reader.buffer.clear()
        self._buffer.hold(0)
        self.queue.put_nowait({"type": "websocket.disconnect", "code": NO_ROOM, "reason": ""})
        self.close_timeout = CLOSING_SECONDS  # the client's own close is passed over as well
        if not self.transport.is_closing():
            self.transport.resume_reading()

    @property
    def _blocked(self) -> bool:
        return self._no_room or self.read_paused or not self.writable.is_set() or self.transport.is_closing()

    def _regulate(self) -> None:
        """Read the socket while there is nothing to be parsed first."""
        if self.transport.is_closing():
            return
        if self._held or self._blocked:
            self._pace.receive(0)
            self.transport.pause_reading()
        else:
            if not self._pace.waits:
                self._pace.wait()
            self.transport.resume_reading()

    def _refuse(self, reason: str) -> None:
        if self.close_sent or self.transport.is_closing():
            return
        self.queue.put_nowait({"type": "websocket.disconnect", "code": POLICY, "reason": reason})
        self.conn.fail(POLICY, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.close()
