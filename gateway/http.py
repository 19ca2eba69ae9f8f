"""uvicorn's HTTP protocol with a bound on the headers of a request, of which llhttp and uvicorn know none."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_SECONDS = 20.0
"""How long a connection may take to send the headers of a request that it began."""

TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: application/problem+json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
)
PROBLEM = (
    b'{"type":"about:blank","title":"The headers are too large","status":431,"code":"headers_too_large",'
    b'"detail":"The headers of a request may have %d bytes.","limit":"max_header_bytes","value":%d}'
)


class HeadersTooLong(Exception):
    """Ends the parsing of a request that was refused."""


class BoundedHeadersProtocol(HttpToolsProtocol):
    """Answers 431 to headers that are too large, and closes a connection whose headers do not end.

    The bound is the option `h11_max_incomplete_event_size`, which is that of uvicorn's other protocol.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401  # uvicorn's
        super().__init__(*arguments, **options)
        self._max_header_bytes = self.config.h11_max_incomplete_event_size or 0
        self._header_bytes = self._received_bytes = 0
        self._in_headers = self._refused = False
        self._overdue: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        """Parse; what has come of headers that are not complete counts as well."""
        if self._refused:
            return
        super().data_received(data)
        if self._in_headers:
            self._received_bytes += len(data)
            if self._received_bytes > self._max_header_bytes:
                self._refuse()

    def on_message_begin(self) -> None:
        """Begin to count and to wait."""
        self._in_headers, self._header_bytes, self._received_bytes = True, 0, 0
        self._overdue = self.loop.call_later(HEADER_SECONDS, self._give_up)
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header, with its colon, space and line end."""
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > self._max_header_bytes:
            self._refuse()
            raise HeadersTooLong
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop counting and waiting."""
        self._in_headers = False
        self._stop_waiting()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, unless it has its answer."""
        if not self._refused:
            super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nobody."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _refuse(self) -> None:
        if not self._refused:
            self._refused = True
            self._stop_waiting()
            body = PROBLEM % (self._max_header_bytes, self._max_header_bytes)
            self.transport.write(TOO_LARGE % (len(body), body))
            self.transport.close()

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    def _stop_waiting(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
