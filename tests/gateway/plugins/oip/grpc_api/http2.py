"""A client of HTTP/2 that keeps only those rules of gRPC that a test wants, without a library."""

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
CHECK = "/grpc.health.v1.Health/Check"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
INITIAL_WINDOW_SIZE = 4
RESET = -1
CALL = {":method": "POST", ":scheme": "http", ":authority": "x", "te": "trailers", "content-type": "application/grpc"}


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame, as it is."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def prefixed(message: bytes) -> bytes:
    """A message after its prefix."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def text(value: bytes, *, huffman: bool = False) -> bytes:
    """A string of HPACK (RFC 7541, section 5.2)."""
    flag, length = 0x80 if huffman else 0, len(value)
    if length < 127:
        return bytes([flag | length]) + value
    encoded, length = bytearray([flag | 127]), length - 127
    while length > 127:
        encoded.append(length & 127 | 128)
        length >>= 7
    return bytes(encoded) + bytes([length]) + value


def header(name: str, value: bytes, *, huffman: bool = False) -> bytes:
    """A header that is not indexed."""
    return b"\0" + text(name.encode()) + text(value, huffman=huffman)


class RawClient:
    """One connection, for one call whose status is read; `window` is how much of a response the client takes."""

    def __init__(self, connection: socket.socket, window: int = 65_535) -> None:
        self.socket = connection
        self._received = b""
        self._stream = -1
        self._reads = window > 0
        self.data: dict[int, bytes] = {}
        self._headers: dict[int, bytes] = {}
        self.ended: dict[int, int | None] = {}
        """The status of each call that has ended; RESET if it was reset without one."""
        setting = INITIAL_WINDOW_SIZE.to_bytes(2, "big") + window.to_bytes(4, "big")
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, setting))

    def call(self, path: str | bytes, message: bytes | None = None, *, more: bytes = b"", key: str = "") -> int:
        """Begin a call, and end it after its message if there is one; `more` are additional headers."""
        self._stream += 2
        block = header(":path", path.encode() if isinstance(path, str) else path)
        block += b"".join(header(name, value.encode()) for name, value in CALL.items()) + more
        if key:
            block += header("x-api-key", key.encode())
        pieces = [block[begin : begin + 16_000] for begin in range(0, len(block), 16_000)]
        sent = b""
        for number, piece in enumerate(pieces):
            flags = END_HEADERS if number == len(pieces) - 1 else 0
            sent += frame(CONTINUATION if number else HEADERS, flags, self._stream, piece)
        if message is not None:
            sent += frame(DATA, END_STREAM, self._stream, prefixed(message))
        self.socket.sendall(sent)
        return self._stream

    def send(self, stream: int, data: bytes) -> None:
        """Send data of a call, which must fit into the service's windows."""
        pieces = (data[begin : begin + 16_000] for begin in range(0, len(data), 16_000))
        self.socket.sendall(b"".join(frame(DATA, 0, stream, piece) for piece in pieces))

    def read(self) -> None:
        """Take the next frame; raises EOFError once the service has closed the connection."""
        while len(self._received) < 9 or len(self._received) < 9 + int.from_bytes(self._received[:3], "big"):
            received = self.socket.recv(65_536)
            if not received:
                raise EOFError
            self._received += received
        end = 9 + int.from_bytes(self._received[:3], "big")
        kind, flags, stream = self._received[3], self._received[4], int.from_bytes(self._received[5:9], "big")
        payload, self._received = self._received[9:end], self._received[end:]
        if kind == DATA:
            self.data[stream] = self.data.get(stream, b"") + payload
            if self._reads and payload:
                update = len(payload).to_bytes(4, "big")
                with suppress(ConnectionError):
                    self.socket.sendall(frame(WINDOW_UPDATE, 0, 0, update) + frame(WINDOW_UPDATE, 0, stream, update))
        elif kind == HEADERS:
            self._headers[stream] = self._headers.get(stream, b"") + payload
        elif kind == RST_STREAM:
            self.ended.setdefault(stream, RESET)
        elif kind == SETTINGS and not flags & ACK:
            self.socket.sendall(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.socket.sendall(frame(PING, ACK, 0, payload))
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            status = re.search(rb"grpc-status.([0-9]+)", self._headers.get(stream, b""), re.DOTALL)
            self.ended[stream] = None if status is None else int(status[1])

    def status(self, stream: int) -> int | None:
        """The status of a call, once it has ended."""
        while stream not in self.ended:
            self.read()
        return self.ended[stream]


@contextmanager
def client(port: int, *, timeout_seconds: float = 30.0, window: int = 65_535) -> Iterator[RawClient]:
    """A client on a new connection to this machine."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_seconds) as connection:
        yield RawClient(connection, window)
