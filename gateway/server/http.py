"""HTTP/1.1: parses requests within bounds, serves them one after the other, and writes the responses."""

import asyncio
import urllib.parse
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import httptools
import structlog
from starlette.types import ASGIApp, Message

from gateway.errors import (
    AlreadyLogged,
    GatewayError,
    HeadersTooLarge,
    InternalError,
    InvalidRequest,
    Overloaded,
)
from gateway.server.connection import Connection, Needs, Phase, ProtocolOf, head
from gateway.server.connections import Wait
from gateway.values.quantities import size

log = structlog.get_logger("gateway")

MAX_HEADER_BYTES, MAX_HEADERS = 64 * 1024, 100
"""Limits of a request's headers, and of a JSON header under /v2."""
MAX_BUFFERED_BYTES = 64 * 1024
"""The socket is not read while the application has more bytes of a body to take."""
NO_BODY = frozenset({204, 304})
SMALL_BYTES = 2**20
"""The rest of a body of that announced length is read after an error as well, and the connection kept."""


class HttpCycle:
    """Runs the application for one request. `complete` is called once the response is complete."""

    def __init__(
        self,
        connection: Connection,
        complete: Callable[["HttpCycle"], None],
        scope: dict[str, Any],
        *,
        keep_alive: bool,
        expects_continue: bool,
    ) -> None:
        self._connection = connection
        self._transport = connection.transport
        self._complete = complete
        self._scope = scope
        self._expects_continue = expects_continue
        self._arrived = asyncio.Event()
        """Set when bytes of the body, or its end, have arrived since `_receive` returned, and after the end."""
        self._body: list[bytes] = []
        self._more_body = True
        self._disconnected = False
        self._chunked = self._is_head = False
        self._left_bytes: int | None = None  # of the response's announced length
        self._unwritten = b""
        """The headers of a response of announced length, which are written together with the first part of its body."""
        self.buffered_bytes = 0
        """How much of the body the application has to take."""
        self.keep_alive = keep_alive
        self.response_started = self._response_complete = False

    def receive_body(self, data: bytes) -> None:
        """Take a part of the body; it is discarded once the response is complete."""
        if not self._response_complete:
            self._body.append(data)
            self.buffered_bytes += len(data)
            self._arrived.set()

    def end_body(self) -> None:
        """The body is complete."""
        self._more_body = False
        self._arrived.set()

    def disconnect(self) -> None:
        """The client is gone."""
        self._disconnected = True
        self._arrived.set()

    async def run(self, app: ASGIApp) -> None:
        """Run the application; only now is there a state, so that a request which waits takes little."""
        self._scope["state"] = {**self._connection.app_state, "reader": self._connection}
        try:
            await app(self._scope, self._receive, self._send)
        except Exception as exc:
            if not isinstance(exc, AlreadyLogged):
                log.exception("unexpected_error")
        finally:
            if not (self._response_complete or self._disconnected):
                self._give_up()

    def _give_up(self) -> None:
        """The application has ended without a response, or in the middle of one."""
        if not self.response_started:
            self._connection.refuse(InternalError())
        else:
            self._connection.close()

    async def _receive(self) -> Message:
        if self._expects_continue and not self._connection.is_closing:
            self._expects_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await self._arrived.wait()
        if self._disconnected or self._response_complete:
            return {"type": "http.disconnect"}
        self._arrived.clear()
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        paused = self._more_body and self.buffered_bytes > MAX_BUFFERED_BYTES
        self.buffered_bytes = 0
        if paused:
            self._connection.update_reading()
        return {"type": "http.request", "body": body, "more_body": self._more_body}

    async def _send(self, message: Message) -> None:
        connection = self._connection
        if not connection.writable.is_set():
            await connection.writable.wait()
        if self._disconnected or connection.lingers or self._transport.is_closing():
            return
        kind = message["type"]
        if not self.response_started:
            if kind != "http.response.start":
                raise RuntimeError(f"expected http.response.start, not {kind}")
            self._start_response(message)
        elif self._response_complete or kind != "http.response.body":
            raise RuntimeError(f"unexpected {kind}")
        else:
            self._send_body(message.get("body", b""), more=message.get("more_body", False))

    def _start_response(self, message: Message) -> None:
        status = message["status"]
        headers = [*self._connection.server_state.default_headers, *message.get("headers", ())]
        closes = False
        for name, value in headers:
            match name.lower():
                case b"content-length":
                    self._left_bytes = int(value)
                case b"transfer-encoding":
                    self._chunked = value.lower() == b"chunked"
                case b"connection":
                    closes = b"close" in value.lower()
        # After an error the rest of a large body is not read; results that stream while it arrives are no error.
        if closes or (status >= 400 and self._more_body and _may_be_large(self._scope)):
            self.keep_alive = False
        if not (self.keep_alive or closes):
            headers.append((b"connection", b"close"))
        self._is_head = self._scope["method"] == "HEAD"
        if self._left_bytes is None and not self._chunked and not self._is_head and status not in NO_BODY:
            self._chunked = True
            headers.append((b"transfer-encoding", b"chunked"))
        lines = head(status, headers)
        self.response_started = True
        self._expects_continue = False
        if self._left_bytes is None:
            self._transport.write(lines + b"\r\n")
        else:
            self._unwritten = lines + b"\r\n"

    def _send_body(self, body: bytes, *, more: bool) -> None:
        if self._is_head:
            body = b""
        elif self._chunked:
            if body:
                body = b"%x\r\n%b\r\n" % (len(body), body)
            if not more:
                body += b"0\r\n\r\n"
        else:
            left_bytes = (self._left_bytes or 0) - len(body)
            if left_bytes < 0 or (left_bytes and not more):
                raise RuntimeError("the response's body has another length than announced")
            self._left_bytes = left_bytes
        if self._unwritten:
            self._transport.writelines((self._unwritten, body))
            self._unwritten = b""
        elif body:
            self._transport.write(body)
        if not more:
            self._response_complete = True
            self._body.clear()
            self.buffered_bytes = 0
            self._arrived.set()
            self._complete(self)


def _may_be_large(scope: dict[str, Any]) -> bool:
    """Whether the body of a request has no announced length, or more than SMALL_BYTES."""
    headers = dict(scope["headers"])
    return b"transfer-encoding" in headers or int(headers.get(b"content-length", 0)) > SMALL_BYTES


def headers_too_large() -> HeadersTooLarge:
    """The error of a request beyond MAX_HEADER_BYTES."""
    return HeadersTooLarge(
        f"The URL and the headers of a request may have {size(MAX_HEADER_BYTES)}, and so may the sizes and trailers of "
        f"a body in chunks.",
        limit="max_header_bytes",
        value=MAX_HEADER_BYTES,
    )


def too_many_headers() -> HeadersTooLarge:
    """The error of a request beyond MAX_HEADERS."""
    sentence = f"A request may have at most {MAX_HEADERS} headers, including trailers."
    return HeadersTooLarge(sentence, limit="max_headers", value=MAX_HEADERS)


MAX_HANDSHAKE_HEADERS, MAX_LINE_BYTES = 100, 8_000
"""Headers and bytes of a line in the handshake of a WebSocket, within the limits of the library that parses it."""
REQUEST_SECONDS = 0.0001
"""Time of the turns to parse that a request takes when it begins, since it computes in the next iteration.

Twice as much costs some 5 % of the images a second of `python -m bench.feed` with 32 in flight.
"""
MAX_LENGTH_DIGITS = 20
"""Digits of a 64-bit number. The parser takes any number of zeros before them; Python refuses thousands of digits."""
FRAMING_SHARE = 8
"""Chunk framing may be at most 1/FRAMING_SHARE of a body. A chunk has 6 bytes of it, so chunks of 48 bytes pass."""
DRAIN_BYTES = 32 * 2**20
"""Bytes of an unread body that are discarded after the response, so that the client can read the response."""
HEALTH_PATH = "/health/"
"""Requests for paths with this prefix are served on reserved connections."""


class HttpHandler:
    """Enforces limits that llhttp lacks, and ignores upgrades to protocols other than the plug-ins' WebSockets.

    It answers 431 to a URL and headers of more than `max_header_bytes`, which are counted in pieces of up to 4 KiB, and
    to as much in the sizes, extensions and trailers of a chunked body; 400 to bytes that are not HTTP. The headers have
    to be complete within `upload_idle_timeout_seconds` of the connection's opening, or of its first byte after a
    response. That byte may belong to the next request, or to a body that the application did not read.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._websockets = connection.runtime.websockets
        self._parser = self._new_parser()
        self._cycles: deque[HttpCycle] = deque()
        """The first is served; the others wait for it."""
        self._receiving: HttpCycle | None = None
        """The request whose body is parsed; its response may be complete."""
        self._begun = True  # the first request, or the next one
        self._refusal: GatewayError | None = None
        self._stopping = self._known = False
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._header_bytes = self._header_count = 0
        self._body_bytes = self._framing_bytes = self._borders = 0
        self.cheap_bytes = 0
        """See Handler: the rest of a body of announced length is one piece, however long it is."""
        self._in_headers = self._offered = self._expects_continue = self._names_host = False

    @property
    def parses(self) -> bool:
        """See Handler. False after a refusal, and while a request waits for the response to a previous one."""
        return len(self._cycles) < 2 and self._refusal is None

    def needs(self) -> Needs:
        """See Handler. The socket is read while the unfinished body of the served request takes little memory."""
        cycles, receiving, parses = self._cycles, self._receiving, self.parses
        if not cycles:
            return Needs(Phase.REQUEST if self._begun else Phase.IDLE, parses, Wait.NEXT if self._known else Wait.FIRST)
        growing = receiving is not None and cycles[0] is receiving and receiving.buffered_bytes > MAX_BUFFERED_BYTES
        return Needs(Phase.SERVING, parses and not growing, None if receiving is None else Wait.MORE)

    def feed(self, piece: memoryview) -> None:
        """Parse; received bytes of incomplete headers count as well."""
        self._begun = True
        borders, body_bytes = self._borders, self._body_bytes
        try:
            try:
                self._parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                self._ignore_offers(piece, upgrade)
        except httptools.HttpParserError:  # a refusal comes out of the parser as such, too
            self._refuse(InvalidRequest())
        if self._in_headers:
            self._header_bytes += len(piece)
            if self._header_bytes > MAX_HEADER_BYTES:
                self._refuse(headers_too_large())
        elif borders == self._borders:  # otherwise some of it is headers
            self._framing_bytes += len(piece) - (self._body_bytes - body_bytes)
            if self._framing_bytes > MAX_HEADER_BYTES + self._body_bytes // FRAMING_SHARE:
                self._refuse(headers_too_large())

    def expire(self) -> None:
        """No request arrived in time."""
        connection = self._connection
        if self._in_headers and connection.connections.reserves(connection):
            connection.refuse(connection.connections.full())
        else:
            connection.close()

    def displace(self, error: Overloaded) -> None:
        """Respond with the error, unless there is nothing to respond to or the response has begun."""
        served = self._cycles[0] if self._cycles else None
        self._drop_requests()
        if served is None:
            self._connection.close()
        elif served.response_started:
            self._connection.transport.abort()
        else:
            self._connection.refuse(error)

    def shutdown(self) -> None:
        """Respond to the received requests."""
        self._stopping = True
        if self._cycles:
            self._cycles[-1].keep_alive = False
        else:
            self._connection.close()

    def lost(self) -> None:
        """See Handler."""
        self._drop_requests()
        del self._parser  # they refer to each other, and full garbage collections are long

    def _drop_requests(self) -> None:
        """Notify the served request of the disconnect, and drop the waiting ones."""
        if self._cycles:
            self._cycles[0].disconnect()
        self._cycles.clear()
        self._receiving = None

    def complete(self, cycle: HttpCycle) -> None:
        """The response of a request is complete: serve the next one."""
        connection = self._connection
        connection.server_state.total_requests += 1
        if not self._cycles or self._cycles[0] is not cycle:
            return  # the connection is lost or given up
        self._cycles.popleft()
        if connection.transport.get_write_buffer_size():
            connection.slow_reader.start()
        if not cycle.keep_alive:
            self._cycles.clear()
            if self._receiving is None:
                connection.close()
            else:
                connection.finish(DRAIN_BYTES)
        elif self._cycles:
            connection.start(self._cycles[0].run(connection.app))
        elif self._refusal is not None:
            connection.refuse(self._refusal)
        else:
            self._begun = self._receiving is not None
        connection.update_reading()

    # Called by the parser

    def on_message_begin(self) -> None:
        """Begin to count."""
        self._in_headers, self._header_bytes, self._header_count = True, 0, 0
        self._borders += 1
        self._body_bytes = self._framing_bytes = 0
        self._url, self._headers, self.cheap_bytes = b"", [], 0
        self._expects_continue = self._names_host = False

    def on_url(self, url: bytes) -> None:
        """Keep the URL, which comes in pieces; its parser counts bytes in 16 bits."""
        self._url += url
        if len(self._url) >= MAX_HEADER_BYTES:
            raise self._refused(headers_too_large())

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep and count a header."""
        name = name.lower()
        if len(value) > MAX_LENGTH_DIGITS and name == b"content-length":
            raise self._refused(InvalidRequest())
        self._header_count += 1
        if self._header_count > MAX_HEADERS:
            raise self._refused(too_many_headers())
        # A trailer is ignored (RFC 9110, section 6.5.1): it would turn into a header while the request is served.
        if self._in_headers:
            self._headers.append((name, value))
            if name == b"content-length":
                self.cheap_bytes = int(value)
            elif name == b"expect" and value.lower() == b"100-continue":
                self._expects_continue = True
            elif name == b"host":
                if self._names_host:  # RFC 9112, section 3.2; a proxy may have checked the other one
                    raise self._refused(InvalidRequest())
                self._names_host = True

    def on_headers_complete(self) -> None:
        """Begin the request, unless it is parsed once more."""
        self._in_headers = False
        if self._parser.get_method() == b"CONNECT":
            raise self._refused(InvalidRequest())
        self._offered = self._parser.should_upgrade()
        if not self._offered:
            self._begin()

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body on."""
        self._body_bytes += len(body)
        self.cheap_bytes = max(self.cheap_bytes - len(body), 0)
        if self._receiving is not None:
            self._receiving.receive_body(body)

    def on_message_complete(self) -> None:
        """End the request, unless it is parsed once more."""
        self._borders += 1
        self._body_bytes = self._framing_bytes = 0
        if self._receiving is not None and not self._offered:
            self._receiving.end_body()
            self._receiving = None

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # A pipelined request after one with "connection: close" must not spoil the response to that one.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _ignore_offers(self, data: memoryview, upgrade: httptools.HttpParserUpgrade) -> None:
        """Continue after an offer to upgrade, which is ignored, as a server may (RFC 9110, section 7.8).

        The parser takes such a request for one without a body, but Java's HTTP client offers HTTP/2 with every upload.
        """
        while True:
            data = data[upgrade.args[0] :]
            method, version = self._parser.get_method(), self._parser.get_http_version()
            path = websocket_path(method, self._url, version, self._headers)
            protocol_of = None if path is None or self._cycles else self._websockets.get(path)
            if protocol_of is not None:
                self._open_websocket(protocol_of, data)
                return
            if not self._parser.should_keep_alive():  # a parser takes nothing after such a request
                self._parser = self._new_parser()
            headers = [field for field in self._headers if field[0] != b"upgrade"]
            self._parser.feed_data(head_of(method, self._url, version, headers))
            try:
                if data:
                    self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as another:  # it may happen once a request
                upgrade = another
            else:
                return

    def _open_websocket(self, protocol_of: ProtocolOf, rest: memoryview) -> None:
        connection = self._connection
        if not connection.connections.start(connection):
            connection.refuse(connection.connections.full())
            return
        del self._parser  # as in `lost`
        connection.hand_over(protocol_of, head_of(b"GET", self._url, "1.1", self._headers), rest)

    def _begin(self) -> None:
        """Serve a request whose headers are complete, or let it wait for the earlier ones."""
        connection, method = self._connection, self._parser.get_method()
        scope = self._scope()
        scope["method"] = method.decode("ascii")
        health = method in (b"GET", b"HEAD") and scope["path"].startswith(HEALTH_PATH)
        connections = connection.connections
        if not connections.start(connection, health=health):
            raise self._refused(connections.full())
        self._known = True
        cycle = HttpCycle(
            connection,
            self.complete,
            scope,
            keep_alive=not self._stopping
            and self._parser.get_http_version() != "1.0"
            and self._parser.should_keep_alive()
            and not (health and connections.reserves(connection)),
            expects_continue=self._expects_continue,
        )
        # Later writes do not show how the last response was read.
        if connection.slow_reader.timer is not None and connection.writable.is_set():
            connection.slow_reader.stop()
        connections.parsing.spend(REQUEST_SECONDS)
        self._receiving = cycle
        self._cycles.append(cycle)
        if len(self._cycles) == 1:
            connection.start(cycle.run(connection.app))

    def _scope(self) -> dict[str, Any]:
        connection = self._connection
        url = httptools.parse_url(self._url)
        path = url.path.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": connection.asgi_version, "spec_version": "2.3"},
            "http_version": self._parser.get_http_version(),
            **connection.addresses,
            "scheme": "http",
            "root_path": connection.root_path,
            "path": connection.root_path + (urllib.parse.unquote(path) if "%" in path else path),
            "raw_path": connection.root_path.encode("ascii") + url.path,
            "query_string": url.query or b"",
            "headers": self._headers,
        }

    def _refused(self, error: GatewayError) -> Exception:
        """Refuse a request inside a callback; raising what is returned ends the parsing."""
        self._refuse(error)
        return ValueError(error.message)

    def _refuse(self, error: GatewayError) -> None:
        """Answer with an error, after the responses to the requests before, and close the connection."""
        if self._refusal is not None or self._connection.is_closing:
            return
        self._refusal = error
        broken, self._receiving = self._receiving, None
        if broken is not None and self._cycles and self._cycles[0] is broken:
            started = broken.response_started
            self._drop_requests()
            if started:
                self._connection.close()
        elif broken is not None and broken in self._cycles:
            self._cycles.remove(broken)
        if not self._cycles:
            self._connection.refuse(error)


def websocket_path(method: bytes, url: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The path of the WebSocket that a request without a body asks for; None if it asks for none."""
    fields = dict(headers)
    opens = (
        method == b"GET"
        and version == "1.1"
        and url.isascii()
        and fields.get(b"upgrade", b"").lower() == b"websocket"
        and fields.get(b"content-length", b"0") == b"0"
        and b"transfer-encoding" not in fields
        and len(fields) < MAX_HANDSHAKE_HEADERS
        and max(len(url), *(len(name) + len(value) for name, value in fields.items())) < MAX_LINE_BYTES
    )
    return url.partition(b"?")[0].decode() if opens else None


def head_of(method: bytes, url: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The bytes of a request without a body."""
    fields = [b"%b: %b\r\n" % field for field in headers]
    return b"%b %b HTTP/%b\r\n" % (method, url, version.encode()) + b"".join(fields) + b"\r\n"
