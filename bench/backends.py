"""`python -m bench.backends FOLDER`: NVIDIA's libtorch backend beside the Python-based one, under the same Triton.

FOLDER is the output of bench/libtorch_backend.sh. Both serve triton_models/ on the CPU. First the networks'
probabilities are compared, then the ensembles get photographs in turns.
"""

import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import psutil
import typer
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput

from bench.grpc_load import GrpcLoad
from bench.limit import Loop
from bench.measurement import Measure, Measurement, accounted, in_turns
from bench.output import progress, table
from bench.photos import coffee
from bench.remote import Remote
from bench.repository import repository
from gateway.triton.contract import CLASSIFIER, CLASSIFIER_INPUT, CLASSIFIER_OUTPUT
from gateway_local.paths import default_cache_dir
from gateway_local.runtime.base import TritonRuntime
from gateway_local.runtime.chooser import ensure_runtime
from gateway_local.server import EmbeddedTriton

LIBRARY = Path("pytorch") / "libtriton_pytorch.so"
PYTHON, LIBTORCH = "Python-based", "libtorch"
SIZES = (1, 2, 3, 8, 8, 17)
"""Sizes of the compared batches; repeated, since libtorch optimises a graph on its second and third call."""
START_SECONDS = 600.0


def with_libtorch(runtime: TritonRuntime, built: Path, folder: Path) -> TritonRuntime:
    """The runtime with the built library in place of the Python-based backend, composed in `folder`."""
    backends = folder / "backends"
    shutil.copytree(runtime.backend_directory, backends, symlinks=True)
    shutil.rmtree(backends / "pytorch")
    (backends / "pytorch").mkdir()
    shutil.copy2(built / LIBRARY, backends / LIBRARY)
    return replace(runtime, backend_directory=backends)


def probabilities(url: str, images: np.ndarray) -> np.ndarray:
    """The results of the classifier model alone; images fp32 [N, 3, 224, 224], probabilities fp32 [N, classes]."""
    tensor = InferInput(CLASSIFIER_INPUT, list(images.shape), "FP32").set_data_from_numpy(images)
    with InferenceServerClient(url) as client:
        result = client.infer(CLASSIFIER, [tensor], outputs=[InferRequestedOutput(CLASSIFIER_OUTPUT)])
    found: np.ndarray = result.as_numpy(CLASSIFIER_OUTPUT)
    return found


def largest_difference(urls: list[str]) -> float:
    """The largest difference of a probability between two Tritons, for random images in several batch sizes."""
    generator = np.random.default_rng(0)
    batches = (generator.standard_normal((size, 3, 224, 224), dtype=np.float32) for size in SIZES)
    return max(float(np.abs(np.subtract(*(probabilities(url, images) for url in urls))).max()) for images in batches)


def main(
    folder: Annotated[Path, typer.Argument(help="Output of bench/libtorch_backend.sh.", exists=True, file_okay=False)],
    model: Annotated[str, typer.Option(help="As for python -m bench.")] = "mobilenet-v3-small",
    rounds: Annotated[int, typer.Option(help="Measurements of each backend.", min=1)] = 5,
    seconds: Annotated[float, typer.Option(help="Length of each measurement.", min=0.1)] = 10.0,
    concurrency: Annotated[int, typer.Option(help="Calls in flight.", min=1)] = 32,
) -> None:
    """Compare probabilities, images a second and processor time of the two backends for TorchScript."""
    with ExitStack() as stack:
        models = stack.enter_context(repository(model, [], progress))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        runtime = ensure_runtime(default_cache_dir(), progress)
        with Remote(Loop, models) as loop:
            photo = replace(coffee(), label=loop.call("label", [coffee()])[0])
        urls, subjects = [], dict[str, Measure]()
        for name, each in {PYTHON: runtime, LIBTORCH: with_libtorch(runtime, folder, scratch)}.items():
            progress(f"starting Triton with the {name} backend")
            triton = stack.enter_context(EmbeddedTriton(each, models, on_log=lambda _: None, cache_bytes=0))
            triton.wait_ready(START_SECONDS)
            assert triton.pid is not None
            sender = stack.enter_context(Remote(GrpcLoad, triton.url))
            sender.call("run", [photo], seconds, concurrency)
            subjects[name] = partial(_measure, sender, psutil.Process(triton.pid), concurrency, photo)
            urls.append(triton.url)
        difference = largest_difference(urls)
        measured = in_turns(subjects, seconds, rounds, progress)
    rows = (
        [name, f"{series.rate:.0f}", str(series.ratio(measured[PYTHON])), f"{series.cpu_milliseconds():.1f} ms"]
        for name, series in measured.items()
    )
    print(f"{model}: no probability differs by more than {difference:.1e}; label {photo.label!r} from both\n")
    print(table(["backend", "images/s", f"× {PYTHON}", "CPU an image, all of Triton"], rows))


def _measure(sender: Remote, triton: psutil.Process, concurrency: int, photo: object, seconds: float) -> Measurement:
    groups = {"Triton": [triton, *triton.children(recursive=True)]}
    return accounted(lambda: groups, lambda: sender.call("run", [photo], seconds, concurrency))


if __name__ == "__main__":
    typer.run(main)
