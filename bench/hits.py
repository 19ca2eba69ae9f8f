"""`python -m bench.hits`: how many repeated images Triton's response cache answers under load.

Some of the images are repeats of a few popular ones; the others are new. The result is counts, not times.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from tritonclient.grpc import InferenceServerClient

from bench.feed import calls_sent, instant_network
from bench.http_load import HttpLoad
from bench.output import progress, table
from bench.photos import coffee, unlike_any
from bench.services import gateway_up
from gateway.triton.contract import ENSEMBLE_MODEL

CACHE_BYTES = 2**26
PERCENTAGES = (1, 10, 50)
"""Percentages of requests with a popular image."""


def main(
    images: Annotated[int, typer.Option(help="For each percentage of repeated images.", min=100)] = 3_000,
    popular: Annotated[int, typer.Option(help="Popular images.", min=1)] = 20,
    concurrency: Annotated[int, typer.Option(help="Requests in flight.", min=1)] = 32,
    tree: Annotated[list[Path] | None, typer.Option(help="Other checkouts to compare with this one.")] = None,
) -> None:
    """Print hits and calls for 1, 10 and 50 % repeated images, for this checkout and others."""
    rows = []
    with instant_network() as models:
        for checkout in [Path.cwd(), *(path.resolve() for path in tree or [])]:
            with gateway_up(models, tree=checkout, settings={"triton_cache_bytes": CACHE_BYTES}) as service:
                for percent in PERCENTAGES:
                    progress(f"{checkout}: {percent} % repeated")
                    sent = list(_images(images, popular, percent))
                    hits, calls = _hits(service.grpc_url), calls_sent(service)
                    HttpLoad(service.url).run_each(sent, concurrency)
                    hits, calls = _hits(service.grpc_url) - hits, calls_sent(service) - calls
                    repeated = len(sent) - len(set(sent))
                    figures = [str(repeated), str(hits), f"{hits / max(1, repeated):.0%}", f"{calls / len(sent):.2f}"]
                    rows.append([f"{checkout.name}, {percent} %", *figures])
    print(table(["", "repeated", "hits", "share", "calls per image"], rows))


def _images(count: int, popular: int, percent: int) -> Iterator[bytes]:
    generator = random.Random(percent)
    photo = coffee().data
    known = [unlike_any(photo) for _ in range(popular)]
    for _ in range(count):
        yield generator.choice(known) if generator.random() * 100 < percent else unlike_any(photo)


def _hits(grpc_url: str) -> int:
    statistics = InferenceServerClient(grpc_url).get_inference_statistics(ENSEMBLE_MODEL)
    return sum(model.inference_stats.cache_hit.count for model in statistics.model_stats)


if __name__ == "__main__":
    typer.run(main)
