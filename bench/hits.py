"""`python -m bench.hits`: how many repeated images Triton's response cache answers under load.

Some of the images are repeated, each one of a few popular ones; the others are new. What counts are hits, not times.
"""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
import uvloop
from tritonclient.grpc import InferenceServerClient

from bench.feed import calls_sent, instant_network
from bench.measurement import WrongAnswer
from bench.photos import coffee, unlike_any
from bench.servers import service
from bench.tables import table
from gateway.triton.contract import ENSEMBLE_MODEL

CACHE_BYTES = 2**26
SHARES = (1, 10, 50)
"""Percent of the requests that show a popular image."""


def main(
    images: Annotated[int, typer.Option(help="For each share of repeated images.", min=100)] = 3_000,
    popular: Annotated[int, typer.Option(help="Popular images.", min=1)] = 20,
    concurrency: Annotated[int, typer.Option(help="Requests in flight.", min=1)] = 32,
    tree: Annotated[list[Path] | None, typer.Option(help="Other checkouts to compare with this one.")] = None,
) -> None:
    """Print hits and calls for 1, 10 and 50 % repeated images, for this checkout and others."""
    rows = []
    with instant_network() as models:
        for checkout in [Path.cwd(), *(tree or [])]:
            with service(models, cache_bytes=CACHE_BYTES, say=_say, tree=checkout) as running:
                for percent in SHARES:
                    _say(f"{checkout}: {percent} % repeated")
                    sent = list(_images(images, popular, percent))
                    before, calls = _hits(running.grpc_url), calls_sent(running.http_url)
                    uvloop.run(_send(running.http_url, sent, concurrency))
                    repeated = len(sent) - len(set(sent))
                    hits = _hits(running.grpc_url) - before
                    calls = calls_sent(running.http_url) - calls
                    figures = [str(repeated), str(hits), f"{hits / repeated:.0%}", f"{calls / len(sent):.2f}"]
                    rows.append([f"{checkout.name}, {percent} %", *figures])
    print(table(["", "repeated", "hits", "share", "calls per image"], rows))


def _images(count: int, popular: int, percent: int) -> Iterator[bytes]:
    generator = random.Random(percent)
    photo = coffee().data
    known = [unlike_any(photo) for _ in range(popular)]
    for _ in range(count):
        yield generator.choice(known) if generator.random() * 100 < percent else unlike_any(photo)


async def _send(url: str, images: list[bytes], concurrency: int) -> None:
    """Send the images over as many connections, with as little work as possible: the service is to be busy."""
    address = urlsplit(url)
    waiting = iter(images)

    async def one_after_the_other() -> None:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        for image in waiting:
            head = f"POST /predict HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: image/jpeg\r\n"
            writer.write(f"{head}Content-Length: {len(image)}\r\n\r\n".encode() + image)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(answer.partition(b"content-length: ")[2].split(b"\r\n")[0]))
            if not answer.startswith(b"http/1.1 200"):
                raise WrongAnswer(answer.decode())
        writer.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(one_after_the_other())


def _hits(grpc_url: str) -> int:
    statistics = InferenceServerClient(grpc_url).get_inference_statistics(ENSEMBLE_MODEL)
    return sum(model.inference_stats.cache_hit.count for model in statistics.model_stats)


def _say(text: str) -> None:
    typer.echo(f"hits | {text}", err=True)


if __name__ == "__main__":
    typer.run(main)
