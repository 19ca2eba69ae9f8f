"""Handshakes and frames of WebSockets (RFC 6455), also invalid ones, which libraries refuse to send."""

import struct
from collections.abc import Iterable

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
GOOD = (
    (b"Host", b"x"),
    (b"Connection", b"Upgrade"),
    (b"Upgrade", b"websocket"),
    (b"Sec-WebSocket-Version", b"13"),
    (b"Sec-WebSocket-Key", KEY),
)
"""The headers of a handshake that is accepted."""


def handshake(fields: Iterable[tuple[bytes, bytes]] = GOOD, query: bytes = b"") -> bytes:
    """The request that opens a stream."""
    lines = b"".join(b"%b: %b\r\n" % field for field in fields)
    return b"GET /stream%b HTTP/1.1\r\n%b\r\n" % (query, lines)


def message(
    opcode: int, payload: bytes = b"", *, final: bool = True, masked: bool = True, claims: int | None = None
) -> bytes:
    """A frame of section 5.2, with a mask of zeros; `claims` replaces the length in its header."""
    length = len(payload) if claims is None else claims
    first, second = (0x80 if final else 0) | opcode, 0x80 if masked else 0
    if length < 126:
        head = struct.pack("!BB", first, second | length)
    elif length < 65_536:
        head = struct.pack("!BBH", first, second | 126, length)
    else:
        head = struct.pack("!BBQ", first, second | 127, length)
    return head + bytes(4 if masked else 0) + payload
