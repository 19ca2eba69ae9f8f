"""Calls of the gRPC server: what a client of HTTP/2 can send, keep open or leave unread."""

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from h2.exceptions import ProtocolError
from tritonclient.grpc import service_pb2

from tests.attack.connections import answers, enough
from tests.attack.http2 import (
    CHECK,
    CONTINUATION,
    HEADERS,
    INFER,
    PING,
    STREAM,
    Ended,
    RawClient,
    frame,
    prefixed,
)
from tests.attack.parsers import SMALL_BMP
from tests.attack.target import Target, cases, counted

MIB = 2**20
READY = "/inference.GRPCInferenceService/ServerReady"
CALLS = 300
"""More calls than GATEWAY_GRPC_MAX_CALLS."""
UPLOADS = 64
SILENT_SECONDS = 1 / 60


def _infer_request(image: bytes) -> service_pb2.ModelInferRequest:
    """A request for the best class of an image."""
    message = service_pb2.ModelInferRequest(model_name="ensemble_model")
    message.inputs.add(name="IMAGE", datatype="BYTES", shape=[1])
    message.raw_input_contents.append(len(image).to_bytes(4, "little") + image)
    message.outputs.add(name="PREDICTION").parameters["classification"].int64_param = 1
    return message


_IMAGE = _infer_request(SMALL_BMP).SerializeToString()
GONE = (Ended, OSError, ProtocolError)
"""What a client meets whose connection the service has closed."""


def _field(number: int, payload: bytes = b"") -> bytes:
    return bytes([number << 3 | 2, len(payload)]) + payload


def _message(target: Target, message: bytes) -> str:
    """Send one message to both methods."""
    with target.http2() as client:
        return counted([client.status(client.call(path, message)) for path in (INFER, STREAM)])


def _each(target: Target, count: int, begin: Callable[[RawClient], object], window: int = 65_535) -> str:
    """Let each of many connections begin something, and keep it."""
    begun = []
    with ExitStack() as stack:
        for _ in range(count):
            with contextlib.suppress(*GONE):
                client = stack.enter_context(target.http2(window=window))
                begin(client)
                begun.append(client)
        time.sleep(target.hold_seconds)
    return f"{len(begun)} begun"


def _unread_frames(client: RawClient) -> None:
    stream = client.call(STREAM, _IMAGE, ends=False)
    for _ in range(3):
        client.send(stream, prefixed(_IMAGE))


def _silent(target: Target) -> str:
    """Begin 60 calls a second, of which none goes on."""
    ends, begun = time.monotonic() + target.hold_seconds, 0
    while time.monotonic() < ends:
        with contextlib.suppress(*GONE), target.http2() as client:
            while time.monotonic() < ends:
                client.call(INFER if begun % 2 else CHECK)
                begun += 1
                time.sleep(SILENT_SECONDS)
    return f"{begun} begun"


def _endless(target: Target, begin: bytes, unit: bytes, nbytes: int = 30 * MIB) -> str:
    """Send frames without end, until the service closes the connection."""
    with target.http2() as client:
        client.answers = False
        with contextlib.suppress(OSError):
            client.socket.sendall(begin)
            for _ in range(nbytes // len(unit)):
                client.socket.sendall(unit)
        return f"GOAWAY {client.until_closed()}"


def uploads(target: Target) -> str:
    """Upload messages at once, each up to its last byte, for as long as the service lets the client."""

    def upload(_: int) -> str:
        with contextlib.suppress(*GONE), target.http2() as client:
            client.socket.settimeout(target.hold_seconds)
            call = client.call(INFER)
            client.send(call, b"\0" + target.nbytes.to_bytes(4, "big") + bytes(target.nbytes - 1))
            return f"status {client.status(call)}"
        return "none yet"

    with ThreadPoolExecutor(UPLOADS) as threads:
        return counted(threads.map(upload, range(UPLOADS)))


# fmt: off
CASES = cases(
    ("grpc-empty-members", "1 MB of empty members in one message",
     lambda target: _message(target, _field(5) * 500_000)),
    ("grpc-nested-members", "1 MB of nested members in one message",
     lambda target: _message(target, _field(5, _field(5, _field(8) * 60)) * 8_000)),
    ("grpc-unread-calls", "Three hundred calls, each on a connection whose client reads nothing",
     lambda target: _each(target, CALLS, lambda client: client.call(READY, b""), window=0)),
    ("grpc-unread-streams", "Every stream the limit allows, whose clients send images and read nothing",
     lambda target: _each(target, target.max_streams * target.workers, _unread_frames, window=0)),
    ("grpc-idle-connections", "More connections than the limit to the port for gRPC, and nothing on them",
     lambda target: _each(target, enough(target), lambda _: None)),
    ("grpc-half-prefaces", "More connections than the limit that send half of HTTP/2's preface",
     lambda target: answers(target.open(enough(target), b"PRI * HTT", port=target.grpc_port))),
    ("grpc-silent-calls", "Sixty calls a second without a message, health checks among them", _silent),
    ("grpc-uploads", "Sixty-four uploads of 20 MB each without the last byte", uploads),
    ("grpc-continuation", "A header block that goes on in CONTINUATION for 30 MB",
     lambda target: _endless(target, frame(HEADERS, 0, 1, b"\0"), frame(CONTINUATION, 0, 1, bytes(16_000)))),
    ("grpc-empty-continuation", "A header block that goes on in empty CONTINUATION frames",
     lambda target: _endless(target, frame(HEADERS, 0, 1, b"\0"), frame(CONTINUATION, 0, 1) * 1_000, MIB)),
    ("grpc-pings", "Pings without end",
     lambda target: _endless(target, b"", frame(PING, 0, 0, bytes(8)) * 1_000)),
)
# fmt: on
