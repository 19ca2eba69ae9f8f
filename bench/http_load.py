"""The load generator: POST /predict over kept-alive connections, every answer's labels checked.

It is the project's own, 100 lines over asyncio's streams and uvloop. wrk, k6 and oha are programs that PyPI does not
have, and check no labels without a script; Locust brings gevent, and takes more processor time for a request than the
gateway does, on the cores that the service needs. This generator takes 0.1 ms.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import httpx
import uvloop

from bench.measurement import Measurement, WrongAnswer
from bench.photos import Photo

BOUNDARY = "a-boundary-that-no-photograph-contains"
BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Call:
    """The bytes of one request, and the labels that its response must have."""

    wire: bytes
    labels: list[str]


class HttpLoad:
    """Sends requests to a service, with an API key if one is needed, from a separate process (bench.remote)."""

    def __init__(self, url: str, key: str = "") -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or "", address.port or 80
        self._key = key

    def run(self, photos: list[Photo], seconds: float, concurrency: int, files: int) -> Measurement:
        """Keep `concurrency` requests of `files` photographs in flight for `seconds`; raises WrongAnswer."""
        return uvloop.run(self._closed(self._clients(photos, concurrency, files), seconds))

    def _clients(self, photos: list[Photo], concurrency: int, files: int) -> list[Iterator[Call]]:
        calls = requests(photos, files, f"{self._host}:{self._port}", self._key)
        starts = [number % len(calls) for number in range(concurrency)]
        return [itertools.cycle(calls[start:] + calls[:start]) for start in starts]

    async def _closed(self, clients: Sequence[Iterator[Call]], seconds: float) -> Measurement:
        measurement = Measurement()
        started = time.perf_counter()

        async def send(calls: Iterator[Call]) -> None:
            async with Connection(self._host, self._port) as connection:
                for call in calls:
                    sent = time.perf_counter()
                    status, body = await connection.exchange(call.wire)
                    if fault := check(status, body, call.labels):
                        raise WrongAnswer(fault)
                    measurement.latencies_seconds.append(time.perf_counter() - sent)
                    measurement.images += len(call.labels)
                    if time.perf_counter() >= started + seconds:
                        return

        try:
            await asyncio.gather(*(send(each) for each in clients))
        except (OSError, EOFError) as exc:
            raise WrongAnswer(f"the service closed the connection: {exc!r}") from exc
        measurement.seconds = time.perf_counter() - started
        return measurement


class Connection:
    """A connection that is opened for its first request."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def exchange(self, wire: bytes) -> tuple[int, bytes]:
        """Send a request; returns its response's status and body. Raises OSError, EOFError or WrongAnswer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address, limit=BUFFER_BYTES)
        reader, writer = self._streams
        writer.write(wire)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        _, found, length = head.partition(b"\r\ncontent-length:")
        if not found:
            raise WrongAnswer("a response without a Content-Length")
        body = await reader.readexactly(int(length.partition(b"\r\n")[0]))
        if b"\r\nconnection: close" in head:
            self.close()
        return int(head.split(b" ", 2)[1]), body

    def close(self) -> None:
        """Close it; another request would open it again."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def __aenter__(self) -> "Connection":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def requests(photos: list[Photo], files: int, host: str, key: str = "") -> list[Call]:
    """Requests of `files` photographs each, which cycle through the photographs."""
    count = len(photos) if files == 1 else 1
    chosen = itertools.cycle(photos)
    return [form_request([next(chosen) for _ in range(files)], host, key) for _ in range(count)]


def form_request(photos: list[Photo], host: str, key: str = "") -> Call:
    """A request with a form of photographs."""
    body = b"".join(form((photo.data for photo in photos), photos[0].name))
    content_type = f"multipart/form-data; boundary={BOUNDARY}"
    return Call(_head(host, content_type, len(body), key) + body, [photo.label for photo in photos])


def form(files: Iterable[bytes], name: str = "x.jpg") -> Iterator[bytes]:
    """A multipart body, a file at a time."""
    for data in files:
        yield f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'.encode()
        yield data
        yield b"\r\n"
    yield f"--{BOUNDARY}--\r\n".encode()


def labelled(url: str, photo: Photo, key: str = "") -> Photo:
    """The photograph with the label that a service gives it: near 0.5, one resize and another may differ."""
    headers = {"X-API-Key": key} if key else {}
    files = {"files": (photo.name, photo.data)}
    response = httpx.post(f"{url}/predict", files=files, headers=headers, timeout=60).raise_for_status()
    return replace(photo, label=response.json()["results"][0]["predictions"][0]["label"])


def check(status: int, body: bytes, labels: list[str]) -> str:
    """The fault of a response; "" if it has none."""
    if status != 200:
        return f"status {status}: {body[:500].decode(errors='replace')}"
    results = json.loads(body)["results"]
    found = [result["predictions"][0]["label"] if result["status"] == "ok" else result["error"] for result in results]
    if len(found) != len(labels):
        return f"{len(found)} results for {len(labels)} files"
    wrong = (
        f"file {index}: expected {label!r}, got {found[index]!r}"
        for index, label in enumerate(labels)
        if found[index] != label
    )
    return next(wrong, "")


def _head(host: str, content_type: str, length: int, key: str = "") -> bytes:
    lines = ["POST /predict HTTP/1.1", f"Host: {host}", f"Content-Type: {content_type}", f"Content-Length: {length}"]
    lines += [f"X-API-Key: {key}"] if key else []
    return "\r\n".join([*lines, "\r\n"]).encode()
