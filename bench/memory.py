"""`python -m bench.memory`: how much the gateway's memory grows under bulk uploads and bombs."""

import http.client
import io
import os
import sys
import threading
import zlib
from collections.abc import Iterable, Iterator
from typing import Annotated
from urllib.parse import urlsplit

import psutil
import skimage.data
import typer
from PIL import Image
from rich.console import Console
from rich.table import Table

from bench.photos import unlike_any
from bench.repository import repository
from bench.servers import service
from gateway.settings import GIB, MIB, variable

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

BOUNDARY = "a-boundary-that-no-photograph-contains"
SAMPLE_SECONDS = 0.02


class Growth:
    """The most that a process's resident memory grows while the context is open, in bytes."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self.bytes = 0

    def __enter__(self) -> "Growth":
        self._before = self._process.memory_info().rss
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            self.bytes = max(self.bytes, self._process.memory_info().rss - self._before)


def camera_jpeg(nbytes: int) -> bytes:
    """A photograph of a size in bytes, most of it in application segments, as cameras write thumbnails and notes."""
    picture = Image.fromarray(skimage.data.coffee())
    file = io.BytesIO()
    (picture if nbytes < MIB else picture.resize((2400, 1600))).save(file, "JPEG", quality=90)
    jpeg = file.getvalue()
    segments = [b"\xff\xea\xff\xff" + bytes(0xFFFD)] * ((nbytes - len(jpeg)) // 0xFFFF + 1)
    return jpeg[:2] + b"".join(segments) + jpeg[2:]


def bomb(side: int) -> bytes:
    """A PNG of `side` × `side` pixels that are all black, in some 50 kB."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")

    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(side // 8 + 1)) for _ in range(side)) + packer.flush()
    header = side.to_bytes(4, "big") * 2 + bytes([1, 0, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def form(files: Iterable[bytes]) -> Iterator[bytes]:
    """A multipart body, a file at a time."""
    for data in files:
        yield f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="f"; filename="x.jpg"\r\n\r\n'.encode()
        yield data
        yield b"\r\n"
    yield f"--{BOUNDARY}--\r\n".encode()


def unlike_the_others(jpeg: bytes, count: int) -> Iterator[bytes]:
    """The same image repeatedly, each time with a unique comment."""
    for _ in range(count):
        yield unlike_any(jpeg)


def post(url: str, files: Iterable[bytes]) -> bytes:
    """Send one request, chunked; returns its answer's body."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=900)
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    connection.request("POST", "/predict?timeout=300&top_k=1", form(files), headers, encode_chunked=True)
    try:
        return connection.getresponse().read()
    finally:
        connection.close()


@app.command()
def main(files: Annotated[int, typer.Option(help="Files in each bulk request.", min=1)] = 1_000) -> None:
    """Send bulk requests of large files and of bombs, and print the growth of the gateway's resident memory."""

    def say(text: str) -> None:
        typer.echo(f"memory | {text}", err=True)

    os.environ[variable("max_request_bytes")] = str(32 * GIB)
    table = Table(title="growth of the gateway's resident memory", show_lines=False)
    for column in ("request", "answers", "growth"):
        table.add_column(column)
    with repository("mobilenet-v3-small", [], say) as models, service(models, cache_bytes=0, say=say) as running:
        (gateway, *_) = running.processes["gateway"]
        post(running.http_url, unlike_the_others(camera_jpeg(100_000), 50))
        for name, make in (
            ("2 MB JPEG, 3.8 megapixels", lambda: unlike_the_others(camera_jpeg(2_000_000), files)),
            ("10 MB JPEG, 3.8 megapixels", lambda: unlike_the_others(camera_jpeg(10_000_000), files)),
            ("PNG bomb of 20,000 × 20,000", lambda: [bomb(20_000)] * files),
        ):
            say(f"{files} × {name}")
            with Growth(gateway) as growth:
                answer = post(running.http_url, make())
            summary = answer.rpartition(b'"summary":')[2].decode().rstrip("}") + "}"
            table.add_row(f"{files:,} × {name}", summary, f"{growth.bytes / MIB:.0f} MiB")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(app())
