"""What a library keeps for a connection has a line that bounds it: each bound is tried from outside.

What waits inside has tests of its own: messages of a WebSocket and pipelined requests that the application has not
taken in tests/gateway/server/test_connection.py, responses that are not read in test_slow_clients.py there.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc
import httpcore2
import pytest

from gateway.ingest.multipart import MAX_PARAMETER_BYTES, MAX_PARAMETERS, MAX_PART_HEADERS
from gateway.plugins.oip.grpc_api.server import MAX_DESCRIPTION_BYTES
from gateway.plugins.streams.websockets import MAX_FRAGMENTS
from gateway.plugins.urls.network import HEAD_READ_BYTES, MAX_OVERHEAD_BYTES, Wire
from gateway.server.http import FRAMING_SHARE, MAX_HEADERS, MAX_LINE_BYTES
from tests.attack.target import MULTIPART, Target, receive, summary
from tests.attack.websocket import BINARY, CONTINUATION, TEXT, Stream, frame, handshake
from tests.doubles.backend import PNG, frame_backend
from tests.gateway.plugins.oip.grpc_api.serving import METHODS, channel_to, serving
from tests.services import stream_service
from tests.settings import Settings

SETTINGS = Settings(_env_file=None)
FILE_BYTES = 100_000
CHUNKED = ("Content-Type: image/png", "Transfer-Encoding: chunked")
BOUNDARY = MULTIPART.partition("boundary=")[2]


@dataclass(frozen=True)
class Kept:
    """What a library keeps for one client: its bound, and what the service answers at it and beyond it."""

    library: str
    what: str
    bound: str
    most: int
    send: Callable[[Target, int], str]
    """Sends so much of it; returns what came back."""
    beyond: str
    within: str | None = None
    """The answer to `most`; by default, any but `beyond`."""


def sent(target: Target, *pieces: bytes) -> str:
    """The status and code of the answer to bytes after which nothing more comes."""
    with target.connect() as connection:
        with contextlib.suppress(OSError):  # refused before all was sent
            connection.sendall(b"".join(pieces))
        return summary(receive(connection, 20))


def head(target: Target, *headers: str) -> bytes:
    return target.head("GET /health/live", "Connection: close", *headers)


def unfinished_headers(target: Target, nbytes: int) -> str:
    """Headers that end only after as many bytes."""
    begin = head(target)[:-2]
    return sent(target, begin, b"a: " + b"x" * max(nbytes - len(begin) - 100, 0), b"\r\n\r\n")


def chunk_extension(target: Target, nbytes: int) -> str:
    extended = b"4;" + b"x" * nbytes + b"\r\n" + PNG[:4] + b"\r\n0\r\n\r\n"
    return sent(target, target.head("POST /predict", "Connection: close", *CHUNKED), extended)


def form(target: Target, *parts: tuple[str, bytes]) -> str:
    body = b"".join([f"--{BOUNDARY}\r\n{headers}\r\n\r\n".encode() + data + b"\r\n" for headers, data in parts])
    return target.post("/predict", body + f"--{BOUNDARY}--\r\n".encode(), MULTIPART)


FIELD, FILE = 'Content-Disposition: form-data; name="top_k"', 'Content-Disposition: form-data; name="f"; filename="a"'


def upgrade(target: Target, *headers: str) -> str:
    return sent(target, handshake(target, "/stream", *headers))[:3]


def closed(target: Target, *frames: bytes) -> str:
    """The close code of a stream that sends these frames, and an end."""
    with Stream(target) as stream:
        stream.send_raw(b"".join([*frames, frame(TEXT, b'{"end": true}')]))
        stream.wait(20)
        return str(stream.close_code)


def fragments(target: Target, count: int) -> str:
    parts = [frame(CONTINUATION, b"", final=False)] * (count - 2)
    return closed(target, frame(BINARY, b"x", final=False), *parts, frame(CONTINUATION, b""))


TABLE = [
    Kept("httptools", "the headers that have come", "max_header_bytes", SETTINGS.max_header_bytes,
         unfinished_headers, "431 headers_too_large", "200"),
    Kept("httptools", "headers", "max_headers", SETTINGS.max_headers,
         lambda target, count: sent(target, head(target, *["a: b"] * (count - 2))), "431 headers_too_large", "200"),
    Kept("httptools", "a URL", "max_header_bytes", SETTINGS.max_header_bytes - 1,
         lambda target, nbytes: sent(target, target.head(f"GET /{'x' * (nbytes - 1)}", "Connection: close")),
         "431 headers_too_large", "404 not_found"),
    Kept("httptools", "extensions of chunks", "max_header_bytes", SETTINGS.max_header_bytes + 1_000 // FRAMING_SHARE,
         chunk_extension, "431 headers_too_large"),
    Kept("multipart", "headers of a part", "MAX_PART_HEADERS", MAX_PART_HEADERS,
         lambda target, count: form(target, ("\r\n".join([FILE, *[f"a{each}: b" for each in range(count - 1)]]), PNG)),
         "431 headers_too_large", "200 ok"),
    Kept("multipart", "bytes of a part's headers", "max_part_header_bytes", SETTINGS.max_part_header_bytes,
         lambda target, nbytes: form(target, (f"{FILE}\r\na: {'x' * (nbytes - len(FILE) - 60)}", PNG)),
         "431 headers_too_large", "200 ok"),
    Kept("multipart", "bytes of a field", "MAX_PARAMETER_BYTES", MAX_PARAMETER_BYTES,
         lambda target, nbytes: form(target, (FIELD, b"1".rjust(nbytes)), (FILE, PNG)), "400 invalid_multipart"),
    Kept("multipart", "fields", "MAX_PARAMETERS", MAX_PARAMETERS,
         lambda target, count: form(target, *[(FIELD, b"1")] * count, (FILE, PNG)), "400 invalid_multipart", "200 ok"),
    Kept("multipart", "a file", "max_file_bytes", FILE_BYTES,
         lambda target, nbytes: form(target, (FILE, PNG + bytes(nbytes - len(PNG)))), "413 file_too_large", "200 ok"),
    Kept("websockets", "a line of a handshake", "MAX_LINE_BYTES", MAX_LINE_BYTES - 1 - len("a"),
         lambda target, nbytes: upgrade(target, f"a: {'x' * nbytes}"), "426", "101"),
    Kept("websockets", "headers of a handshake", "MAX_HEADERS", MAX_HEADERS - 1,
         lambda target, count: upgrade(target, *[f"a{number}: b" for number in range(count - 5)]), "426", "101"),
    Kept("websockets", "a message", "max_file_bytes", FILE_BYTES,
         lambda target, nbytes: closed(target, frame(BINARY, PNG + bytes(nbytes - len(PNG)))), "1009", "1000"),
    Kept("uvicorn", "parts of a message", "MAX_FRAGMENTS", MAX_FRAGMENTS, fragments, "1008", "1000"),
]  # fmt: skip


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with stream_service(frame_backend(), max_file_bytes=FILE_BYTES) as (address, _):
        host, _, port = address.partition(":")
        yield Target(host, int(port))


@pytest.mark.parametrize("kept", TABLE, ids=lambda kept: f"{kept.library}: {kept.what}")
def test_bound_holds(target: Target, kept: Kept):
    # Bytes are counted in pieces of up to 4 KiB.
    within, beyond = kept.send(target, kept.most), kept.send(target, kept.most + kept.most // 2_000 * 200 + 1)
    if kept.within is None:
        assert within != kept.beyond
    else:
        assert within == kept.within
    assert beyond == kept.beyond


async def test_bounds_of_grpc_hold():
    """Those of connections and calls are in tests/gateway/plugins/oip/grpc_api/test_limits.py."""
    async with serving(max_file_bytes=FILE_BYTES) as address, channel_to(address) as channel:
        method = channel.unary_unary(f"{METHODS}/ModelInfer")
        most = FILE_BYTES + MAX_DESCRIPTION_BYTES
        for message, metadata, code in (
            (bytes(most), (), grpc.StatusCode.INVALID_ARGUMENT),  # no message of protobuf
            (bytes(most + 1), (), grpc.StatusCode.RESOURCE_EXHAUSTED),
            (b"\0", (("a", "x" * SETTINGS.max_header_bytes),), grpc.StatusCode.RESOURCE_EXHAUSTED),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await method(message, metadata=metadata, timeout=30)
            assert caught.value.code() is code


async def test_bound_of_httpcore_holds():
    """Headers of a host from which an image is fetched."""

    class Endless(httpcore2.AsyncNetworkStream):
        async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
            await asyncio.sleep(0)
            return bytes(max_bytes)

    wire = Wire(Endless())
    for _ in range(MAX_OVERHEAD_BYTES // HEAD_READ_BYTES):
        assert len(await wire.read(65_536)) == HEAD_READ_BYTES
    with pytest.raises(httpcore2.RemoteProtocolError, match="headers or framing"):
        await wire.read(65_536)
