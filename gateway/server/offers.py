"""Requests that offer to continue with another protocol."""

from collections.abc import Iterable

MAX_HEADERS, MAX_LINE_BYTES = 100, 8_000


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
        # Within the limits of the library that parses the handshake.
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
