"""A client of HTTP/2 that keeps only those rules of gRPC that an attack wants."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, Event, ResponseReceived, StreamReset, TrailersReceived
from h2.settings import SettingCodes, Settings

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
CHECK = "/grpc.health.v1.Health/Check"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame, as it is."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def prefixed(message: bytes) -> bytes:
    """A message after its prefix."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class Ended(Exception):
    """The service has closed the connection."""


class RawClient:
    """One connection. `window` is how much of each response the client takes without a read; with 0 it reads none.

    `key` is the API key of its calls.
    """

    def __init__(self, connection: socket.socket, *, window: int = 65_535, key: str = "") -> None:
        self.socket = connection
        self.calls = 0
        """The number of calls so far."""
        self._key = key
        self._reads, self._corked = window > 0, False
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        initial = {SettingCodes.INITIAL_WINDOW_SIZE: window}
        self._h2.local_settings = Settings(client=True, initial_values=initial)
        self._h2.initiate_connection()
        self.headers: dict[int, dict[str, str]] = {}
        self.data: dict[int, bytes] = {}
        self.resets: dict[int, int] = {}
        self.goaway: int | None = None
        self.answers = True
        """Whether the client acknowledges settings and pings."""
        self.flush()

    def flush(self) -> None:
        """Send what is ready, outside of `at_once`."""
        if not self._corked:
            self.socket.sendall(self._h2.data_to_send())

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Send everything in the block at its end."""
        self._corked = True
        yield
        self._corked = False
        self.flush()

    def call(self, path: str, message: bytes | None = None, *, ends: bool = True, key: str = "") -> int:
        """Begin a call, and end it unless told otherwise."""
        stream = self._h2.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "x"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]
        key = key or self._key
        self._h2.send_headers(stream, headers + ([("x-api-key", key)] if key else []))
        self.calls += 1
        self.flush()
        if message is not None:
            self.send(stream, prefixed(message), ends=ends)
        return stream

    def send(self, stream: int, data: bytes, *, ends: bool = False) -> None:
        """Send as the service's windows allow, until the service ends the call."""
        while data and stream not in self.resets:
            nbytes = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size, len(data))
            if nbytes:
                self._h2.send_data(stream, data[:nbytes], end_stream=ends and nbytes == len(data))
                data = data[nbytes:]
                self.flush()
            else:
                self.read()

    def reset(self, stream: int) -> None:
        """End a call with RST_STREAM."""
        self._h2.reset_stream(stream)
        self.flush()

    def read(self) -> list[Event]:
        """What the service sends next; raises Ended."""
        data = self.socket.recv(65_536)
        if not data:
            raise Ended
        events = self._h2.receive_data(data)
        for event in events:
            match event:
                case ResponseReceived() | TrailersReceived():
                    fields = {str(name): str(value) for name, value in event.headers}
                    self.headers.setdefault(event.stream_id, {}).update(fields)
                case DataReceived():
                    if self._reads:
                        self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    self.data[event.stream_id] = self.data.get(event.stream_id, b"") + event.data
                case StreamReset():
                    self.resets[event.stream_id] = event.error_code
                case ConnectionTerminated():
                    self.goaway = event.error_code
                case _:
                    pass
        if (answers := self._h2.data_to_send()) and self.answers:
            self.socket.sendall(answers)
        return events

    def status(self, stream: int) -> int:
        """The status of a call, once it has ended; -1 if it was reset without one."""
        while "grpc-status" not in self.headers.get(stream, {}):
            if stream in self.resets:
                return -1
            self.read()
        return int(self.headers[stream]["grpc-status"])

    def until_closed(self) -> int | None:
        """Read until the service closes the connection; the error code of its GOAWAY."""
        try:
            while True:
                self.read()
        except (Ended, ConnectionError):
            return self.goaway


@contextmanager
def client(port: int, *, timeout_seconds: float = 30.0, window: int = 65_535) -> Iterator[RawClient]:
    """A client on a new connection to this machine."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_seconds) as connection:
        yield RawClient(connection, window=window)


def goaway_after(port: int, data: bytes) -> int | None:
    """Send bytes as they are behind the preface; the error code of the service's GOAWAY, None without one."""
    with client(port) as raw:
        raw.answers = False
        with suppress(ConnectionError):  # the service has seen enough
            for begin in range(0, len(data), 65_536):
                raw.socket.sendall(data[begin : begin + 65_536])
        return raw.until_closed()
