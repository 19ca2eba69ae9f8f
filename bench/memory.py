"""`python -m bench.memory`: how much the gateway's memory grows under bulk uploads and decompression bombs."""

import http.client
from collections.abc import Iterable, Iterator
from typing import Annotated

import skimage.data
import typer
from PIL import Image

from bench import costly_files as hostile
from bench.http_load import BOUNDARY, form
from bench.measurement import Peak
from bench.output import progress, table
from bench.photos import as_jpeg, unlike_any
from bench.repository import repository
from bench.services import Service, gateway_up
from gateway.settings import GIB, MIB

BOMB_SIDE = 20_000


def camera_jpeg(nbytes: int) -> bytes:
    """A photograph of a size in bytes, most of it in application segments, as cameras write thumbnails and notes."""
    image = Image.fromarray(skimage.data.coffee())
    jpeg = as_jpeg(image if nbytes < MIB else image.resize((2400, 1600)), quality=90)
    segments = [b"\xff\xea\xff\xff" + bytes(0xFFFD)] * ((nbytes - len(jpeg)) // 0xFFFF + 1)
    return jpeg[:2] + b"".join(segments) + jpeg[2:]


def distinct(jpeg: bytes, count: int) -> Iterator[bytes]:
    """The same image repeatedly, each time with a unique comment."""
    for _ in range(count):
        yield unlike_any(jpeg)


def post(service: Service, files: Iterable[bytes]) -> bytes:
    """Send one request, chunked; returns the body of its response."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=900)
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    connection.request("POST", "/predict?timeout=300&top_k=1", form(files), headers, encode_chunked=True)
    try:
        return connection.getresponse().read()
    finally:
        connection.close()


def main(files: Annotated[int, typer.Option(help="Files in each bulk request.", min=1)] = 1_000) -> None:
    """Send bulk requests of large files and of bombs, and print the growth of the gateway's resident memory."""
    bulks = {
        "2 MB JPEG, 3.8 megapixels": lambda: distinct(camera_jpeg(2_000_000), files),
        "10 MB JPEG, 3.8 megapixels": lambda: distinct(camera_jpeg(10_000_000), files),
        "PNG bomb of 20,000 × 20,000": lambda: iter([hostile.black_png(BOMB_SIDE)] * files),
    }
    rows = []
    with (
        repository("mobilenet-v3-small", [], progress) as models,
        gateway_up(models, settings={"max_request_bytes": 32 * GIB}) as service,
    ):
        post(service, distinct(camera_jpeg(100_000), 50))
        for name, make in bulks.items():
            progress(f"{files} × {name}")
            with Peak(lambda: service.api.memory_info().rss) as memory:
                response = post(service, make())
            summary = response.rpartition(b'"summary":')[2].decode().rstrip("}") + "}"
            rows.append([f"{files:,} × {name}", summary, f"{memory.growth / MIB:.0f} MiB"])
    print(table(["request", "answers", "growth"], rows))


if __name__ == "__main__":
    typer.run(main)
