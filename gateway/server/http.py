"""uvicorn's HTTP protocol with bounds on what surrounds a body, and deaf to offers of protocols but the WebSocket's."""

import asyncio
import time
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from gateway.errors import GatewayError, HeadersTooLarge, InvalidRequest
from gateway.server.connections import CountedProtocol, answer
from gateway.server.websockets import PATH, BoundedWebSocketProtocol
from gateway.settings import Settings
from gateway.turns import TURN_SECONDS

MAX_LINE_BYTES = 8_000
"""Of a request that opens a WebSocket: its URL, or one of its headers."""
MAX_PIPELINED = 16
"""When so many requests of a connection wait for the answers to those before them, no more are parsed."""
PIECE_BYTES = 16 * 1024
"""How much is parsed before others may have a turn: of the smallest requests or chunks, some milliseconds' worth."""
MAX_LENGTH_DIGITS = 20
"""Of 64 bits. The parser takes any number of zeros before them; Python reads no number of thousands of digits."""
FRAMING_SHARE = 8
"""A body in chunks may have a byte of framing for so many of its own; six go with a chunk, so 48 in each are fine."""


class HeadersTooLong(Exception):
    """Ends the parsing of a request that was refused."""


class BoundedHeadersProtocol(CountedProtocol):
    """Bounds what llhttp and uvicorn leave unbounded, and serves who asks for an upgrade in the protocol at hand.

    It answers 431 to headers or a URL of more than `max_header_bytes`, and to as much in the sizes, extensions and
    trailers of a body in chunks; 400 to what is not HTTP. It closes a connection that does not finish its headers
    within `upload_idle_timeout_seconds` of its opening, or of its first byte after an answer, be that byte of the next
    request or of a body that nobody wanted.

    It parses for TURN_SECONDS at a time, and no more than MAX_PIPELINED requests ahead.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401  # uvicorn's
        super().__init__(*arguments, **options)
        settings: Settings = self.app_state["settings"]
        self._max_header_bytes = settings.max_header_bytes
        self._max_headers = settings.max_headers
        self._header_seconds = settings.upload_idle_timeout_seconds
        self._header_bytes = self._header_count = self._received_bytes = 0
        self._body_bytes = self._framing_bytes = self._borders = 0
        self._in_headers = self._refused = self._offered = False
        self._held = bytearray()  # received and not parsed yet
        self._overdue: asyncio.TimerHandle | None = None
        self._websocket: BoundedWebSocketProtocol | None = None
        """What has the connection now, if it was upgraded."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Begin to wait."""
        super().connection_made(transport)
        self._wait()

    def parse(self, data: bytes) -> None:
        """Parse, or keep what comes while others have their turn."""
        if self._held:
            self._hold(data)
        elif not self._refused:
            self._take(memoryview(data))

    def _take(self, data: memoryview) -> None:
        """Parse until the turn is over or too many requests wait for their answers; the rest is held."""
        if self._idle:
            self._wait()
        self._unset_keepalive_if_required()
        ends = time.perf_counter() + TURN_SECONDS
        for start in range(0, len(data), PIECE_BYTES):
            full = len(self.pipeline) >= MAX_PIPELINED
            if full or (start and time.perf_counter() > ends):
                self._hold(data[start:])
                if not full:  # else there is an answer to come, after which it goes on
                    self.loop.call_soon(self._go_on)
                return
            self._parse_piece(data[start : start + PIECE_BYTES])
            if self._websocket is not None:
                self._websocket.data_received(bytes(data[start + PIECE_BYTES :]))
                return
            if self._refused:
                return

    def _hold(self, data: bytes | memoryview) -> None:
        self._held += data
        self.flow.pause_reading()

    def _go_on(self) -> None:
        """Parse what was held, and read on where uvicorn itself would."""
        if self._refused or self.parser is None:
            return
        held, self._held = self._held, bytearray()
        self._take(memoryview(held))
        in_body = self.cycle is not None and len(self.cycle.body) > HIGH_WATER_LIMIT
        if not (self._held or self.pipeline or in_body):
            self.flow.resume_reading()

    def _parse_piece(self, data: memoryview) -> None:
        """Parse; what has come of headers that are not complete counts as well."""
        borders, body_bytes = self._borders, self._body_bytes
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        if self._in_headers:
            self._received_bytes += len(data)
            if self._received_bytes > self._max_header_bytes:
                self._refuse()
        elif borders == self._borders:  # else some of it are headers
            self._framing_bytes += len(data) - (self._body_bytes - body_bytes)
            if self._framing_bytes > self._max_header_bytes + self._body_bytes // FRAMING_SHARE:
                self._refuse()

    def on_response_complete(self) -> None:
        """Let the next request be served, and parsed."""
        super().on_response_complete()
        if self._held:
            self.loop.call_soon(self._go_on)

    def on_message_begin(self) -> None:
        """Begin to count."""
        self._in_headers, self._header_bytes, self._header_count, self._received_bytes = True, 0, 0, 0
        self._begin_to_count()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count the URL, which comes in pieces."""
        super().on_url(url)
        if len(self.url) > self._max_header_bytes:
            self._refuse()
            raise HeadersTooLong

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header, with its colon, space and line end."""
        if len(value) > MAX_LENGTH_DIGITS and name.lower() == b"content-length":
            self._close_with(InvalidRequest())
            raise HeadersTooLong
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > self._max_header_bytes:
            self._refuse()
            raise HeadersTooLong
        self._header_count += 1
        if self._header_count > self._max_headers:
            most = self._max_headers
            sentence = f"A request may have at most {most} headers, including trailers."
            self._close_with(HeadersTooLarge(sentence, limit="max_headers", value=most))
            raise HeadersTooLong
        # A trailer is passed over (RFC 9110, section 6.5.1): it would turn into a header while the request is served.
        if self._in_headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop counting and waiting."""
        self._in_headers = False
        self._offered = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if not self._offered:
            self._stop_waiting()
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count the body's own bytes."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request, unless it is parsed once more."""
        self._begin_to_count()
        if not self._offered:
            super().on_message_complete()

    def _parse(self, data: memoryview) -> None:
        """Parse; an offer to upgrade is ignored, as a server may (RFC 9110, section 7.8).

        The parser takes such a request for one without a body, but Java's HTTP client offers HTTP/2 with every upload.
        """
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:  # it may happen once a request
                data = data[upgrade.args[0] :]
                if self._opens_websocket():
                    self._hand_over(bytes(data))
                    return
                if not self._offered:
                    return
                request = self._without_offer()
                if not self.parser.should_keep_alive():  # a parser takes nothing after such a request
                    self.parser = httptools.HttpRequestParser(self)
                self.parser.feed_data(request)
            else:
                return

    def _opens_websocket(self) -> bool:
        """Whether the request is for a WebSocket, at the path for them, with nothing before it left to be answered.

        The library that takes over bears no line of more than 8 KiB.
        """
        return (
            self._offered
            and self._idle
            and not self.pipeline
            and self.parser.get_method() == b"GET"
            and self.url.partition(b"?")[0] == PATH
            and self.url.isascii()
            and all(len(line) <= MAX_LINE_BYTES for line in (self.url, *(name + value for name, value in self.headers)))
            and any(name == b"upgrade" and value.lower() == b"websocket" for name, value in self.headers)
        )

    def _hand_over(self, rest: bytes) -> None:
        """Let the WebSocket's protocol have the connection, and the request that opens it."""
        self._stop_waiting()
        self._reading.stop()
        self._unset_keepalive_if_required()
        self.connections.discard(self)
        protocol = BoundedWebSocketProtocol(
            config=self.config, server_state=self.server_state, app_state=self.app_state
        )
        self._websocket = protocol
        self._counted.replace(self, protocol)
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        fields = [b"%b: %b\r\n" % field for field in self.headers]
        protocol.data_received(b"GET %b HTTP/1.1\r\n%b\r\n" % (self.url, b"".join(fields)) + rest)

    def _without_offer(self) -> bytes:
        line = self.parser.get_method(), self.url, self.parser.get_http_version().encode()
        fields = [b"%b: %b\r\n" % field for field in self.headers if field[0] != b"upgrade"]
        return b"%b %b HTTP/%b\r\n" % line + b"".join(fields) + b"\r\n"

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  # uvicorn's words, which say less
        """Answer what is not HTTP, unless it has been answered."""
        self._close_with(InvalidRequest())

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nobody."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _begin_to_count(self) -> None:
        self._borders += 1
        self._body_bytes = self._framing_bytes = 0

    def _refuse(self) -> None:
        most = self._max_header_bytes
        self._close_with(
            HeadersTooLarge(
                f"The URL and the headers of a request may have {most} bytes each, and so may the sizes and trailers "
                f"of a body in chunks.",
                limit="max_header_bytes",
                value=most,
            )
        )

    def _close_with(self, error: GatewayError) -> None:
        if self._refused:
            return
        self._refused = True
        self._stop_waiting()
        # Else it would land in the middle of the answer to the request before, or be taken for it.
        in_body = not (self._in_headers or self._idle or self.pipeline or self.cycle.response_started)
        if self._idle or in_body:
            self.transport.write(answer(error))
        self.transport.close()
        self._reading.begin(self.transport)

    def _wait(self) -> None:
        if self._overdue is None:
            self._overdue = self.loop.call_later(self._header_seconds, self._give_up)

    def _give_up(self) -> None:
        self._overdue = None
        if self._idle:
            self.transport.close()

    def _stop_waiting(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
