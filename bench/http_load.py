"""(c, d, e) POST /predict from a client with little processor time, since it shares the cores with the service."""

import asyncio
import json
import re
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

import uvloop

from bench.measurement import Measurement, WrongAnswer
from bench.photos import Photo

BOUNDARY = "a-boundary-that-no-photograph-contains"
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_HEADER_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Call:
    """The bytes of one request, and the labels that its response must have."""

    wire: bytes
    labels: list[str]


class HttpLoad:
    """`concurrency` connections, each with a request that is always in flight."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)

    def run(self, photos: list[Photo], seconds: float, concurrency: int, files: int) -> Measurement:
        """Send requests of `files` photographs for `seconds` and wait for every answer; raises WrongAnswer."""
        return uvloop.run(self._run(photos, seconds, concurrency, files))

    async def _run(self, photos: list[Photo], seconds: float, concurrency: int, files: int) -> Measurement:
        host, port = self._address.hostname or "", self._address.port or 80
        calls = requests(photos, files, f"{host}:{port}")
        measurement = Measurement()
        started = time.perf_counter()
        loop = asyncio.get_running_loop()
        done = [loop.create_future() for _ in range(concurrency)]
        transports: list[asyncio.WriteTransport] = []
        loop.set_exception_handler(partial(_fail, done))
        for number, future in enumerate(done):
            turn = calls[number % len(calls) :] + calls[: number % len(calls)]
            connection = loop.create_connection(
                partial(Client, turn, measurement, started + seconds, future), host, port
            )
            transports.append((await connection)[0])
        try:
            await asyncio.gather(*done)
        finally:
            # No connection may remain when the loop is closed.
            for transport in transports:
                transport.abort()
            await asyncio.gather(*done, return_exceptions=True)
            await asyncio.sleep(0)
        measurement.seconds = time.perf_counter() - started
        return measurement


class Client(asyncio.BufferedProtocol):
    """A kept-alive connection that sends the next request when an answer is whole, until `deadline`."""

    def __init__(self, calls: list[Call], measured: Measurement, deadline: float, done: "asyncio.Future[None]") -> None:
        self._calls = calls
        self._measured = measured
        self._deadline = deadline
        self._done = done
        self._next = 0
        self._sent = 0.0
        self._buffer = bytearray(1 << 16)
        self._filled = 0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own, of another class
        self._send()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # asyncio's signature
        """A buffer for the next bytes."""
        if self._filled == len(self._buffer):
            self._buffer = self._buffer + bytes(len(self._buffer))
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Check an answer when its last byte is there, and send the next request."""
        self._filled += nbytes
        head = self._buffer.find(_HEADER_END, 0, self._filled)
        if head < 0:
            return
        length = _CONTENT_LENGTH.search(self._buffer, 0, head + 2)
        if length is None:
            self._fail("an answer without a Content-Length")
            return
        start = head + len(_HEADER_END)
        end = start + int(length[1])
        if self._filled < end:
            return
        call = self._calls[self._next]
        fault = check(bytes(self._buffer[:head]), bytes(self._buffer[start:end]), call.labels)
        if fault:
            self._fail(fault)
            return
        now = time.perf_counter()
        self._measured.latencies_seconds.append(now - self._sent)
        self._measured.images += len(call.labels)
        self._filled = 0
        self._next = (self._next + 1) % len(self._calls)
        if now < self._deadline:
            self._send()
        else:
            self._done.set_result(None)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """A connection that ends before its answer is a failure."""
        if not self._done.done():
            self._done.set_exception(WrongAnswer(f"the gateway closed the connection: {exc}"))

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(self._calls[self._next].wire)

    def _fail(self, fault: str) -> None:
        if not self._done.done():
            self._done.set_exception(WrongAnswer(fault))
        self._transport.abort()


def _fail(done: list["asyncio.Future[None]"], _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An exception in a callback ends the measurement, instead of leaving it waiting for an answer."""
    for future in done:
        if not future.done():
            future.set_exception(context.get("exception") or RuntimeError(context["message"]))


def requests(photos: list[Photo], files: int, host: str) -> list[Call]:
    """Requests of `files` photographs each, which use the photographs in turn."""
    count = len(photos) if files == 1 else 1
    starts = range(0, count * files, files)
    return [_request([photos[(start + n) % len(photos)] for n in range(files)], host) for start in starts]


def _request(photos: list[Photo], host: str) -> Call:
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="files"; filename="{photo.name}"\r\n'
        f"Content-Type: image/jpeg\r\n\r\n".encode()
        + photo.data
        + b"\r\n"
        for photo in photos
    ]
    body = b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()
    head = (
        f"POST /predict HTTP/1.1\r\nHost: {host}\r\nContent-Type: multipart/form-data; boundary={BOUNDARY}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return Call(head.encode() + body, [photo.label for photo in photos])


def check(head: bytes, body: bytes, labels: list[str]) -> str:
    """What is wrong with a response; "" if nothing is."""
    status = head.split(b" ", 2)[1]
    if status != b"200":
        return f"status {status.decode()}: {body[:500].decode(errors='replace')}"
    results = json.loads(body)["results"]
    said = [result["predictions"][0]["label"] if result["status"] == "ok" else result["error"] for result in results]
    if said == labels:
        return ""
    if len(said) != len(labels):
        return f"{len(said)} results for {len(labels)} files"
    index = next(index for index, label in enumerate(labels) if said[index] != label)
    return f"file {index} is {labels[index]!r}, and the gateway says {said[index]!r}"
