"""HTTP/1.1: parses requests within bounds, and serves them one after the other."""

import urllib.parse
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import httptools

from gateway.errors import GatewayError, InvalidRequest, Overloaded
from gateway.limits.connections import Slot
from gateway.server.cycle import MAX_BUFFERED_BYTES, HttpCycle, headers_too_large, too_many_headers
from gateway.server.handler import Needs, Phase, ProtocolOf, ServedConnection

MAX_HEADERS, MAX_LINE_BYTES = 100, 8_000
"""Headers and bytes of a line in the handshake of a WebSocket, within the limits of the library that parses it."""
MAX_PIPELINED = 16
"""Requests of a connection that may wait for the response to one before them; then no more are parsed."""
MAX_LENGTH_DIGITS = 20
"""Digits of a 64-bit number. The parser takes any number of zeros before them; Python refuses thousands of digits."""
FRAMING_SHARE = 8
"""Chunk framing may be at most 1/FRAMING_SHARE of a body. A chunk has 6 bytes of it, so chunks of 48 bytes pass."""
DRAIN_BYTES = 32 * 2**20
"""How much of a body that was not read is discarded once the response is sent, so that the client can read that."""
HEALTH_PATH = "/health/"
"""Requests for paths that begin so are served on the connections that are reserved for them."""


class HttpHandler:
    """Bounds what llhttp leaves unbounded, and ignores offers of protocols but WebSockets that a plug-in serves.

    It answers 431 to headers or a URL of more than `max_header_bytes`, and to as much in the sizes, extensions and
    trailers of a chunked body; 400 to what is not HTTP. The headers have to be complete within
    `upload_idle_timeout_seconds` of the connection's opening, or of its first byte after a response, be that byte of
    the next request or of a body that the application did not read.
    """

    def __init__(self, connection: ServedConnection) -> None:
        self._connection = connection
        settings = connection.settings
        self._max_header_bytes, self._max_headers = settings.max_header_bytes, settings.max_headers
        self._websockets: Mapping[str, ProtocolOf] = connection.app_state.get("websockets", {})
        self._parser = self._new_parser()
        self._cycles: deque[HttpCycle] = deque()
        """The first is served; the others wait for it."""
        self._receiving: HttpCycle | None = None
        """The one whose body is parsed; its response may be complete."""
        self._begun = True  # the first request, or the next one
        self._refusal: GatewayError | None = None
        self.parses = True
        """See Handler. False after a refusal, and while too many requests wait or take too much memory."""
        self._stopping = self._known = False
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._header_bytes = self._header_count = self._received_bytes = 0
        self._body_bytes = self._framing_bytes = self._borders = 0
        self.cheap_bytes = 0
        """See Handler: the rest of a body of announced length is one piece, however long it is."""
        self._in_headers = self._offered = self._expects_continue = False

    @property
    def runs(self) -> bool:
        """See Handler."""
        return bool(self._cycles) and self._cycles[0].runs

    def needs(self) -> Needs:
        """See Handler. The socket is read while the unfinished body of the served request takes little memory."""
        cycles, receiving, parses = self._cycles, self._receiving, self.parses
        if not cycles:
            return Needs(Phase.REQUEST if self._begun else Phase.IDLE, parses, parses, awaits_client=False)
        growing = receiving is not None and cycles[0] is receiving and receiving.buffered_bytes > MAX_BUFFERED_BYTES
        return Needs(Phase.SERVING, parses, parses and not growing, awaits_client=receiving is not None)

    def feed(self, piece: memoryview) -> None:
        """Parse; what has come of headers that are not complete counts as well."""
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
            self._received_bytes += len(piece)
            if self._received_bytes > self._max_header_bytes:
                self._refuse(headers_too_large(self._max_header_bytes))
        elif borders == self._borders:  # otherwise some of it is headers
            self._framing_bytes += len(piece) - (self._body_bytes - body_bytes)
            if self._framing_bytes > self._max_header_bytes + self._body_bytes // FRAMING_SHARE:
                self._refuse(headers_too_large(self._max_header_bytes))
        if len(self._cycles) > 1:
            self._update_parses()

    def _update_parses(self) -> None:
        """Decide `parses` again, after requests that wait, or the refusal, have changed."""
        cycles = self._cycles
        waiting_bytes = sum(cycle.nbytes for cycle in islice(cycles, 1, None))
        fits = len(cycles) <= MAX_PIPELINED and waiting_bytes <= MAX_BUFFERED_BYTES
        self.parses = not cycles or (fits and self._refusal is None)

    def expire(self) -> None:
        """No request came in time."""
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
        """Respond to the requests that have come."""
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
        """Notify the request that is served of the disconnect, and drop those that wait."""
        if self._cycles:
            self._cycles[0].disconnect()
        self._cycles.clear()
        self._receiving, self.parses = None, True

    def complete(self, cycle: HttpCycle) -> None:
        """The response of a request is complete: serve the next one."""
        connection = self._connection
        connection.server_state.total_requests += 1
        if not self._cycles or self._cycles[0] is not cycle:
            return  # the connection is lost or given up
        self._cycles.popleft()
        if connection.transport.get_write_buffer_size():
            connection.slow_reader.start(connection.transport)
        if not cycle.keep_alive:
            self._cycles.clear()
            if self._receiving is None:
                connection.close()
            else:
                connection.finish(DRAIN_BYTES)
        elif self._cycles:
            self._cycles[0].task = connection.start(self._cycles[0].run(connection.app))
        elif self._refusal is not None:
            connection.refuse(self._refusal)
        else:
            self._begun = self._receiving is not None
            connection.connections.idle(connection)
        if not self.parses:
            self._update_parses()
        connection.update_reading()

    # Called by the parser

    def on_message_begin(self) -> None:
        """Begin to count."""
        self._in_headers, self._header_bytes, self._header_count, self._received_bytes = True, 0, 0, 0
        self._borders += 1
        self._body_bytes = self._framing_bytes = 0
        self._url, self._headers, self._expects_continue, self.cheap_bytes = b"", [], False, 0

    def on_url(self, url: bytes) -> None:
        """Count the URL, which comes in pieces."""
        self._url += url
        if len(self._url) > self._max_header_bytes:
            raise self._refused(headers_too_large(self._max_header_bytes))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header, with its colon, space and line end."""
        name = name.lower()
        if len(value) > MAX_LENGTH_DIGITS and name == b"content-length":
            raise self._refused(InvalidRequest())
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > self._max_header_bytes:
            raise self._refused(headers_too_large(self._max_header_bytes))
        self._header_count += 1
        if self._header_count > self._max_headers:
            raise self._refused(too_many_headers(self._max_headers))
        # A trailer is ignored (RFC 9110, section 6.5.1): it would turn into a header while the request is served.
        if self._in_headers:
            self._headers.append((name, value))
            if name == b"content-length":
                self.cheap_bytes = int(value)
            elif name == b"expect" and value.lower() == b"100-continue":
                self._expects_continue = True

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
        """Parse on after an offer to upgrade, which is ignored, as a server may (RFC 9110, section 7.8).

        The parser takes such a request for one without a body, but Java's HTTP client offers HTTP/2 with every upload.
        """
        while True:
            data = data[upgrade.args[0] :]
            request = self._parser.get_method(), self._url, self._parser.get_http_version(), self._headers
            protocol_of = None if self._cycles else self._websockets.get(websocket_path(*request) or "")
            if protocol_of is not None:
                self._open_websocket(protocol_of, data)
                return
            if not self._parser.should_keep_alive():  # a parser takes nothing after such a request
                self._parser = self._new_parser()
            self._parser.feed_data(without_offer(*request))
            if not data:
                return
            try:
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
        """Serve a request whose headers are complete, or have it wait for those before it."""
        connection, method = self._connection, self._parser.get_method()
        scope = self._scope()
        scope["method"] = method.decode("ascii")
        health = method in (b"GET", b"HEAD") and scope["path"].startswith(HEALTH_PATH)
        slot = connection.connections.start(connection, health=health)
        if not slot:
            raise self._refused(connection.connections.full())
        first, self._known = not self._known, True
        if self._cycles:
            start_turns = connection.connections.pipelined_requests
        elif first:
            start_turns = connection.connections.first_requests
        else:
            start_turns = connection.connections.next_requests
        cycle = HttpCycle(
            connection,
            self.complete,
            scope,
            header_bytes=self._header_bytes + len(self._url),
            keep_alive=not self._stopping
            and self._parser.get_http_version() != "1.0"
            and self._parser.should_keep_alive()
            and slot is not Slot.RESERVE,
            expects_continue=self._expects_continue,
            start_turns=None if first and health else start_turns,
        )
        # What is written from now on says nothing about how the last response was read.
        if connection.slow_reader.timer is not None and connection.writable.is_set():
            connection.slow_reader.stop()
        self._receiving = cycle
        self._cycles.append(cycle)
        if len(self._cycles) == 1:
            cycle.task = connection.start(cycle.run(connection.app))

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
        self._update_parses()


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
        and len(fields) < MAX_HEADERS
        and max(len(url), *(len(name) + len(value) for name, value in fields.items())) < MAX_LINE_BYTES
    )
    return url.partition(b"?")[0].decode() if opens else None


def without_offer(method: bytes, url: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The same request without its header Upgrade."""
    return head_of(method, url, version, [field for field in headers if field[0] != b"upgrade"])


def head_of(method: bytes, url: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The bytes of a request without a body."""
    fields = [b"%b: %b\r\n" % field for field in headers]
    return b"%b %b HTTP/%b\r\n" % (method, url, version.encode()) + b"".join(fields) + b"\r\n"
