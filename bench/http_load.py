"""The load generator: POST /predict over kept-alive connections, every answer's labels checked.

It is the project's own, over asyncio's streams and uvloop. wrk, k6 and oha are programs that PyPI does not have, and
check no labels without a script; Locust brings gevent, and takes more processor time for a request than the gateway
does, on the cores that the service needs. This generator takes 0.1 ms.
"""

import asyncio
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from urllib.parse import urlsplit

import httpx
import uvloop

from bench.measurement import Measurement, WrongAnswer
from bench.photos import Photo

BOUNDARY = "a-boundary-that-no-photograph-contains"
BUFFER_BYTES = 1 << 20


class HttpLoad:
    """Sends requests to a service from a separate process (bench.remote)."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or "", address.port or 80

    def run(self, photo: Photo, seconds: float, concurrency: int, files: int) -> Measurement:
        """Keep `concurrency` requests, each with a photograph in `files` files, in flight; raises WrongAnswer."""
        return uvloop.run(self._run(photo, seconds, concurrency, files))

    async def _run(self, photo: Photo, seconds: float, concurrency: int, files: int) -> Measurement:
        measurement, request = Measurement(), form_request(photo, files, f"{self._host}:{self._port}")
        started = time.perf_counter()

        async def send() -> None:
            reader, writer = await asyncio.open_connection(self._host, self._port, limit=BUFFER_BYTES)
            try:
                while True:
                    sent = time.perf_counter()
                    writer.write(request)
                    status, body = await answer(reader)
                    if fault := check(status, body, [photo.label] * files):
                        raise WrongAnswer(fault)
                    measurement.latencies_seconds.append(time.perf_counter() - sent)
                    measurement.images += files
                    if time.perf_counter() >= started + seconds:
                        return
            finally:
                writer.transport.abort()

        try:
            await asyncio.gather(*(send() for _ in range(concurrency)))
        except (OSError, EOFError) as exc:
            raise WrongAnswer(f"the service closed the connection: {exc!r}") from exc
        measurement.seconds = time.perf_counter() - started
        return measurement


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The status and the body of a response; raises OSError, EOFError or WrongAnswer."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    _, found, length = head.partition(b"\r\ncontent-length:")
    if not found:
        raise WrongAnswer("a response without a Content-Length")
    body = await reader.readexactly(int(length.partition(b"\r\n")[0]))
    return int(head.split(b" ", 2)[1]), body


def form_request(photo: Photo, files: int, host: str) -> bytes:
    """A request with a form that has a photograph in each file."""
    body = b"".join(form([photo.data] * files, photo.name))
    head = (
        f"POST /predict HTTP/1.1\r\nHost: {host}\r\nContent-Type: multipart/form-data; boundary={BOUNDARY}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def form(files: Iterable[bytes], name: str = "x.jpg") -> Iterator[bytes]:
    """A multipart body, a file at a time."""
    for data in files:
        yield f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'.encode()
        yield data
        yield b"\r\n"
    yield f"--{BOUNDARY}--\r\n".encode()


def labelled(url: str, photo: Photo) -> Photo:
    """The photograph with the label that a service gives it: near 0.5, one resize and another may differ."""
    files = {"files": (photo.name, photo.data)}
    response = httpx.post(f"{url}/predict", files=files, timeout=60).raise_for_status()
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
