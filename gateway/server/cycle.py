"""One HTTP request and its response, as ASGI messages; responses that the server writes itself."""

import asyncio
import http
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from pydantic_core import to_json
from starlette.types import ASGIApp, Message

from gateway.errors import (
    PROBLEM_MEDIA_TYPE,
    AlreadyLogged,
    GatewayError,
    HeadersTooLarge,
    InternalError,
    Overloaded,
    problem_document,
)
from gateway.limits.connections import Member, Turns
from gateway.server.handler import ServedConnection
from gateway.values.quantities import size

MAX_BUFFERED_BYTES = 64 * 1024
"""The socket is not read while the application has more bytes of a body to take; no more requests of a connection are
parsed while the waiting ones have more."""
NO_BODY = frozenset({204, 304})
SMALL_BYTES = 2**20
"""The rest of a body of that announced length is read after an error as well, and the connection kept."""
_STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in http.HTTPStatus}

log = structlog.get_logger("gateway")


class HttpCycle:
    """Runs the application for one request. `complete` is called once the response is complete."""

    def __init__(
        self,
        connection: ServedConnection,
        complete: Callable[["HttpCycle"], None],
        scope: dict[str, Any],
        *,
        header_bytes: int,
        keep_alive: bool,
        expects_continue: bool,
        start_turns: Turns[Member] | None,
    ) -> None:
        self._connection = connection
        self._transport = connection.transport
        self._complete = complete
        self._scope = scope
        self._header_bytes = header_bytes
        self._expects_continue = expects_continue
        self._start_turns = start_turns
        self.task: asyncio.Task[None] | None = None
        """Runs the application."""
        self._changed = False
        """Whether bytes of the body, or its end, came since `_receive` returned."""
        self._waiting: asyncio.Event | None = None
        """Set at the next change, while `_receive` waits for one."""
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

    @property
    def nbytes(self) -> int:
        """How much memory the request takes while it waits."""
        return self._header_bytes + self.buffered_bytes

    @property
    def runs(self) -> bool:
        """Whether the application runs."""
        return self.task is not None and not self.task.done()

    def receive_body(self, data: bytes) -> None:
        """A part of the body has come; it is discarded once the response is complete."""
        if not self._response_complete:
            self._body.append(data)
            self.buffered_bytes += len(data)
            self._changed = True
            if self._waiting is not None:
                self._waiting.set()

    def end_body(self) -> None:
        """The body is complete."""
        self._more_body, self._changed = False, True
        if self._waiting is not None:
            self._waiting.set()

    def disconnect(self) -> None:
        """The client is gone."""
        self._disconnected = True
        if self._waiting is not None:
            self._waiting.set()

    async def run(self, app: ASGIApp) -> None:
        """Run the application; only now is there a state, so that a request which waits takes little."""
        self._scope["state"] = {**self._connection.app_state, "reader": self._connection}
        try:
            if self._start_turns is not None:
                await self._start_turns.wait(self._connection)
                if self._disconnected:  # meanwhile
                    return
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
        while not (self._changed or self._disconnected or self._response_complete):
            waiting = self._waiting = self._waiting or asyncio.Event()
            await waiting.wait()
        self._changed, self._waiting = False, None
        if self._disconnected or self._response_complete:
            return {"type": "http.disconnect"}
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
            if self._waiting is not None:
                self._waiting.set()
            self._complete(self)


def _may_be_large(scope: dict[str, Any]) -> bool:
    """Whether the body of a request has no announced length, or more than SMALL_BYTES."""
    headers = dict(scope["headers"])
    return b"transfer-encoding" in headers or int(headers.get(b"content-length", 0)) > SMALL_BYTES


def head(status: int, headers: Sequence[Sequence[bytes]]) -> bytes:
    """The status line and the headers, without the empty line behind them; ASGI allows headers that are lists.

    Raises ValueError for a header with a line break or a NUL, which would begin another header or response.
    """
    text = b"".join(map(b"%b: %b\r\n".__mod__, map(tuple, headers)))
    if text.count(b"\n") != len(headers) or text.count(b"\r") != len(headers) or b"\0" in text:
        raise ValueError("a response header contains a line break or a NUL")
    return (_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status) + text


def error_response(error: GatewayError) -> bytes:
    """The response to bytes that are no request, and to a request that is refused before it reaches the application."""
    headers = [(b"content-type", PROBLEM_MEDIA_TYPE.encode())]
    if isinstance(error, Overloaded):
        headers.append((b"retry-after", b"1"))
    body = to_json(problem_document(error, uuid.uuid4().hex))
    length = b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
    return head(int(error.status), headers) + length + body


def headers_too_large(most: int) -> HeadersTooLarge:
    """The error of a request beyond `max_header_bytes`."""
    return HeadersTooLarge(
        f"The URL and the headers of a request may have {size(most)} each, and so may the sizes and trailers of a "
        f"body in chunks.",
        limit="max_header_bytes",
        value=most,
    )


def too_many_headers(most: int) -> HeadersTooLarge:
    """The error of a request beyond `max_headers`."""
    sentence = f"A request may have at most {most:,} headers, including trailers."
    return HeadersTooLarge(sentence, limit="max_headers", value=most)
