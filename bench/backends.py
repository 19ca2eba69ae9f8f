"""`python -m bench.backends FOLDER`: NVIDIA's libtorch backend beside the Python-based one, under the same Triton.

FOLDER is what bench/libtorch_backend.sh wrote. Both serve triton_models/ on the CPU. The networks' probabilities are
compared first, then photographs are sent to the ensembles in turns, so that neighbours on the machine disturb both.
"""

import shutil
import statistics
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import psutil
import typer
from rich.console import Console
from rich.table import Table
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput

from bench.grpc_load import GrpcLoad, labelled
from bench.measurement import Measurement, accounted, median_ratio
from bench.photos import coffee
from bench.remote import Remote
from bench.repository import repository
from gateway.triton.contract import CLASSIFIER, CLASSIFIER_INPUT, CLASSIFIER_OUTPUT
from gateway_local.runtime import Runtime, default_cache_dir, ensure_runtime
from gateway_local.server import EmbeddedTriton

LIBRARY = Path("pytorch") / "libtriton_pytorch.so"
PYTHON, LIBTORCH = "Python-based", "libtorch"
SIZES = (1, 2, 3, 8, 8, 17)
"""Sizes of the compared batches; repeated, since libtorch optimises a graph on its second and third call."""
START_SECONDS = 600.0


def say(text: str) -> None:
    """A line of progress on stderr."""
    typer.echo(f"bench | {text}", err=True)


def with_libtorch(runtime: Runtime, built: Path, folder: Path) -> Runtime:
    """The runtime with the built library in place of the Python-based backend, composed in `folder`."""
    backends = folder / "backends"
    shutil.copytree(runtime.backend_directory, backends, symlinks=True)
    shutil.rmtree(backends / "pytorch")
    (backends / "pytorch").mkdir()
    shutil.copy2(built / LIBRARY, backends / LIBRARY)
    return replace(runtime, backend_directory=backends)


def probabilities(url: str, images: np.ndarray) -> np.ndarray:
    """The classifier's results alone; images fp32 [N, 3, 224, 224], probabilities fp32 [N, classes]."""
    given = InferInput(CLASSIFIER_INPUT, list(images.shape), "FP32").set_data_from_numpy(images)
    with InferenceServerClient(url) as client:
        result = client.infer(CLASSIFIER, [given], outputs=[InferRequestedOutput(CLASSIFIER_OUTPUT)])
    answer: np.ndarray = result.as_numpy(CLASSIFIER_OUTPUT)
    return answer


def largest_difference(tritons: Mapping[str, EmbeddedTriton]) -> float:
    """The largest difference of a probability between the two backends, for random images in several batch sizes."""
    generator = np.random.default_rng(0)
    worst = 0.0
    for size in SIZES:
        images = generator.standard_normal((size, 3, 224, 224), dtype=np.float32)
        ours, theirs = (probabilities(triton.url, images) for triton in tritons.values())
        worst = max(worst, float(np.abs(ours - theirs).max()))
    return worst


def main(
    folder: Annotated[Path, typer.Argument(help="Output of bench/libtorch_backend.sh.", exists=True, file_okay=False)],
    model: Annotated[str, typer.Option(help="As for python -m bench.")] = "mobilenet-v3-small",
    rounds: Annotated[int, typer.Option(help="Measurements of each backend.", min=1)] = 5,
    seconds: Annotated[float, typer.Option(help="Length of each measurement.", min=0.1)] = 10.0,
    concurrency: Annotated[int, typer.Option(help="Calls in flight.", min=1)] = 32,
) -> None:
    """Compare answers, images a second and processor time of the two backends for TorchScript."""
    runtime = ensure_runtime(default_cache_dir(), say)
    measurements: dict[str, list[Measurement]] = {PYTHON: [], LIBTORCH: []}
    with ExitStack() as stack:
        models = stack.enter_context(repository(model, [], say))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        runtimes = {PYTHON: runtime, LIBTORCH: with_libtorch(runtime, folder, scratch)}
        tritons, groups, senders = {}, {}, {}
        for name, each in runtimes.items():
            say(f"starting Triton with the {name} backend")
            triton = EmbeddedTriton(each, models, on_log=lambda _: None, cache_bytes=0)
            tritons[name] = stack.enter_context(triton)
            triton.wait_ready(START_SECONDS)
            assert triton.pid is not None
            server = psutil.Process(triton.pid)
            groups[name] = {"Triton": [server, *server.children(recursive=True)]}
            senders[name] = stack.enter_context(Remote(GrpcLoad, triton.url))
        difference = largest_difference(tritons)
        photo = labelled(tritons[PYTHON].url, coffee())
        for number in range(1 + rounds):
            for name, sender in senders.items():
                measurement = accounted(groups[name], partial(sender.call, "run", [photo], seconds, concurrency))
                if number:  # the first one warms up
                    measurements[name].append(measurement)
            say(f"round {number} of {rounds}")
    table = Table("backend", "images/s", "as a share", "processor ms an image", box=None, pad_edge=False)
    for name, measured in measurements.items():
        rate, share = statistics.median(t.rate for t in measured), median_ratio(measured, measurements[PYTHON])
        spent = statistics.median(t.cpu_milliseconds()["Triton"] for t in measured)
        table.add_row(name, f"{rate:.0f}", f"{share:.2f}", f"{spent:.1f}")
    console = Console()
    console.print(f"{model}: no probability differs by more than {difference:.1e}; label {photo.label!r} from both")
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
