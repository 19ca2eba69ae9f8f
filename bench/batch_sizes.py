"""`python -m bench.batch_sizes FOLDER`: what the first calls of each batch size cost in NVIDIA's libtorch backend.

FOLDER is the output of bench/libtorch_backend.sh. TorchScript may optimise a network again when a size is new. One
instance on the CPU, without a warm-up, gets four calls of each size in turn, smallest first.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from google.protobuf import text_format

from bench.backends import START_SECONDS, probabilities, with_libtorch
from bench.output import progress, table
from bench.repository import repository
from gateway.triton.contract import CLASSIFIER
from gateway.triton.model_config import read_model_config
from gateway_local.paths import default_cache_dir
from gateway_local.runtime.chooser import ensure_runtime
from gateway_local.server import EmbeddedTriton

CALLS = 4


def main(
    folder: Annotated[Path, typer.Argument(help="Output of bench/libtorch_backend.sh.", exists=True, file_okay=False)],
    model: Annotated[str, typer.Option(help="As for python -m bench.")] = "mobilenet-v3-small",
    largest: Annotated[int, typer.Option(help="Largest batch.", min=2, max=64)] = 64,
) -> None:
    """Print milliseconds of each call, and medians over the sizes, each beside the faster of its last two calls."""
    one = [f"{CLASSIFIER}.instance_group.count=1"]
    times: dict[int, list[float]] = {}
    with repository(model, one, progress) as models, tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        path = models / CLASSIFIER / "config.pbtxt"
        config = read_model_config(path)
        del config.model_warmup[:]
        path.write_text(text_format.MessageToString(config))
        runtime = with_libtorch(ensure_runtime(default_cache_dir(), progress), folder, Path(scratch))
        with EmbeddedTriton(runtime, models, on_log=lambda _: None, cache_bytes=0, load_models=(CLASSIFIER,)) as triton:
            triton.wait_ready(START_SECONDS)
            generator = np.random.default_rng(0)
            for size in range(1, largest + 1):
                images = generator.standard_normal((size, 3, 224, 224), dtype=np.float32)
                times[size] = [milliseconds(triton.url, images) for _ in range(CALLS)]
    calls = [f"call {number + 1}, ms" for number in range(CALLS)]
    print(table(["images", *calls], ([str(size), *(f"{each:.0f}" for each in row)] for size, row in times.items())))
    ratios = [[each / min(row[-2:]) for each in row] for row in times.values()]
    medians = (f"{statistics.median(column):.2f}" for column in zip(*ratios, strict=True))
    print(f"\nmedian over the sizes, beside the faster of the last two calls: {', '.join(medians)}")


def milliseconds(url: str, images: np.ndarray) -> float:
    """How long a call of the classifier alone takes."""
    began = time.perf_counter()
    probabilities(url, images)
    return 1e3 * (time.perf_counter() - began)


if __name__ == "__main__":
    typer.run(main)
