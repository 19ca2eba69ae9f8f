"""From trained weights to served answers, on one real Triton: each is the eager model's on the reference transforms."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from tritonclient.grpc import InferenceServerClient, InferInput

from gateway_local.server import EmbeddedTriton
from gateway_machine.gpus import gpu_count
from gateway_models.blocking_triton import BlockingTriton, TritonRefused
from gateway_models.networks.add import add
from gateway_models.proof.image_files import image_files, read_image_files
from gateway_models.proof.parity import Comparison, Parity, compare
from gateway_models.repository.entry import Entry, EntryError, read_entry, write_record
from gateway_models.repository.preprocessing import Preprocessing, reference_transforms
from gateway_models.repository.preprocessing_sources import from_weights
from gateway_models.repository.spec import Format, ImageTensor, ModelSpec, Precision, Serving
from tests.commands import gateway
from tests.gateway_models.networks.builders import (
    Head,
    lite,
    lite_preprocessing,
    save_labels,
    save_onnx,
    save_torchscript,
    seeded,
)
from tests.gateway_models.repository.entries import SMALL
from tests.photos import PHOTOS, photo, unlike_any
from tests.tritons import running_triton

pytestmark = [pytest.mark.triton, pytest.mark.long]

TOLERANCE = 1e-3
ONE_EACH = Serving(instances=1, preprocessor_instances=1)


@dataclass(frozen=True)
class Trained:
    """A model as its training left it, and how it is added.

    `preprocessing` may name torchvision's weights, which take seconds to import: whoever collects tests waits for none.
    `save` writes the file that is added, or with `architecture` that of torchvision:ARCHITECTURE's weights; `changes`
    are of the Request.
    """

    network: Callable[[], nn.Module]
    preprocessing: Preprocessing | str
    save: Callable[[nn.Module, Path], str]
    labels: int = 1000
    architecture: str = ""
    file: str = ""
    """The name of the saved file without its suffix, where several models come from one; else the model's own."""
    changes: dict[str, Any] = field(default_factory=dict)


def _script(side: int) -> Callable[[nn.Module, Path], str]:
    return lambda network, path: str(_once(save_torchscript, network, path.with_suffix(".pt"), side))


def _onnx(side: int) -> Callable[[nn.Module, Path], str]:
    return lambda network, path: str(_once(save_onnx, network, path.with_suffix(".onnx"), side))


def _once(save: Callable[[nn.Module, Path, int], Path], network: nn.Module, path: Path, side: int) -> Path:
    return path if path.exists() else save(network, path, side)


def _state_dict(network: nn.Module, path: Path) -> str:
    torch.save(network.state_dict(), path.with_suffix(".pth"))
    return str(path.with_suffix(".pth"))


def _lite(number: int, save: Callable, **changes) -> Trained:
    preprocessing = lite_preprocessing(number)
    save_it = save(preprocessing.crop_size)
    return Trained(lambda: lite(number), preprocessing, save_it, file=f"lite{number}", changes=changes)


def _torchvision(architecture: str, weights: str, **changes) -> Trained:
    return Trained(lambda: seeded(architecture), weights, _state_dict, architecture=architecture, changes=changes)


RESNET, MOBILENET = "ResNet18_Weights.IMAGENET1K_V1", "MobileNet_V3_Small_Weights.IMAGENET1K_V1"
FIVE = Preprocessing((256,), 224, "bilinear", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SEEDS = Serving(
    max_batch_size=4096, preferred=(32, 64, 128, 256, 512, 1024), queue_delay_us=100, preprocessor_instances=1
)
FP32 = {
    "efficientnet-lite0": _lite(0, _script),
    "efficientnet-lite1": _lite(1, _script),
    "efficientnet-lite2": _lite(2, _script),
    "resnet18": _torchvision("resnet18", RESNET),
    "mobilenet_v3_small": _torchvision("mobilenet_v3_small", MOBILENET),
    "efficientnet-lite0-onnx": _lite(0, _onnx),
    "efficientnet-lite1-to-onnx": _lite(1, _script, format=Format.ONNX),
    "efficientnet-lite2-onnx": _lite(2, _onnx),
    "resnet18-to-onnx": _torchvision("resnet18", RESNET, format=Format.ONNX),
    "mobilenet_v3_small-to-onnx": _torchvision("mobilenet_v3_small", MOBILENET, format=Format.ONNX),
    "five-classes": Trained(Head, FIVE, _script(224), 5),
    "efficientnet-lite0-of-pixels": _lite(0, _script, tensor=ImageTensor.UINT8),
    "five-classes-of-pixels-to-onnx": Trained(
        Head, FIVE, _script(224), 5, changes={"tensor": ImageTensor.UINT8, "format": Format.ONNX}
    ),
    "multi-label": Trained(Head, SMALL, _script(32), 5, changes={"multi_label": True}),
    "multi-label-onnx": Trained(lambda: Head(last=nn.Sigmoid()), SMALL, _onnx(32), 5, changes={"multi_label": True}),
}
LOWER = {
    "efficientnet-lite0-bf16": _lite(0, _script, precision=Precision.BF16),
    "efficientnet-lite0-onnx-fp16": _lite(0, _onnx, precision=Precision.FP16),
    # fp16 is slow on a CPU, and a small network shows it as well.
    "five-classes-fp16": Trained(Head, FIVE, _script(224), 5, changes={"precision": Precision.FP16}),
}
MODELS = {
    **FP32,
    **LOWER,
    # Processes with ONNX start in a fraction of the time that torch takes to be imported.
    "wrong-resize": _lite(0, _onnx),
    "counted": Trained(Head, FIVE, _onnx(224), 5),
    "versioned": Trained(Head, SMALL, _onnx(32), 5),
    "seeds": Trained(Head, FIVE, _script(224), 5, changes={"serving": SEEDS}),
}
PREPARED_AHEAD = 3


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("round-trips") / "models"


@pytest.fixture(scope="module")
def server(runtime, repository) -> Iterator[EmbeddedTriton]:
    """A Triton without models, for each test to load its own."""
    repository.mkdir()
    with running_triton(runtime, repository, load_models=()) as server:
        yield server


@dataclass
class Served:
    """A model that was added and is served."""

    name: str
    entry: Entry
    network: nn.Module
    triton: BlockingTriton


@pytest.fixture(scope="module")
def serves(server, repository, tmp_path_factory) -> Iterator[Callable]:
    """Gives a model of MODELS, served for as long as its test lasts; the next ones are added during the same test."""
    folder = tmp_path_factory.mktemp("trained")
    prepared: dict[str, Future] = {}
    networks: dict[str, nn.Module] = {}
    names = list(MODELS)

    def prepare(request: ModelSpec) -> Entry:
        entry = add(request, repository, print)
        if request.name == "seeds":
            (repository / entry.classifier / "config.pbtxt").write_text(as_on_a_cpu(SEEDS_CONFIG))
            server.update_sizes()  # as `gateway up` does for configurations that are edited
        with BlockingTriton(server.url) as triton:
            triton.load(entry.name)
        return entry

    with ThreadPoolExecutor(2) as pool:

        @contextmanager
        def serves(name: str) -> Iterator[Served]:
            here = names.index(name)
            for each in names[here : here + PREPARED_AHEAD]:
                if each not in prepared:
                    # Saved here and not in a thread, where torch's warnings cannot be told from another's.
                    networks[each] = MODELS[each].network().eval()
                    prepared[each] = pool.submit(prepare, request_of(each, networks[each], folder))
            entry = prepared[name].result()
            with BlockingTriton(server.url) as triton:
                try:
                    yield Served(name, entry, networks.pop(name), triton)
                finally:
                    wait(prepared.values())  # a test leaves no work behind
                    entry = read_entry(repository, name)
                    triton.unload(*entry.ensembles, entry.classifier, entry.preprocessor)

        yield serves
        pool.shutdown(cancel_futures=True)


def request_of(name: str, network: nn.Module, folder: Path) -> ModelSpec:
    trained = MODELS[name]
    saved = trained.save(network, folder / (trained.file or name))
    request = ModelSpec(
        source=f"torchvision:{trained.architecture}" if trained.architecture else saved,
        weights=saved if trained.architecture else None,
        name=name,
        labels=save_labels(folder / f"{name}.txt", trained.labels),
        preprocessing=from_weights(said) if isinstance(said := trained.preprocessing, str) else said,
        serving=ONE_EACH,
    )
    return replace(request, **trained.changes)


def probabilities_of(network: nn.Module, images: list[torch.Tensor], *, multi_label: bool = False) -> np.ndarray:
    """The eager network's, one image at a time."""
    with torch.inference_mode():
        scores = torch.cat([network(image[None]) for image in images])
    if isinstance(getattr(network, "last", None), (nn.Softmax, nn.Sigmoid)):
        return scores.numpy()
    return (scores.sigmoid() if multi_label else scores.softmax(dim=1)).numpy()


@pytest.mark.parametrize("name", FP32)
def test_served_answers_are_the_eager_models(name, serves, photos):
    files = image_files([photos])
    with serves(name) as served:
        transforms = reference_transforms(served.entry.preprocessing)
        images = [transforms(Image.open(path).convert("RGB")) for path in files]
        expected = probabilities_of(served.network, images, multi_label=served.entry.multi_label)
        answers = np.concatenate([served.triton.predict(name, [path.read_bytes()]).values for path in files])
        parity = Parity(list(compare(served.entry, 1, served.triton, read_image_files(files))), [])
    assert np.abs(answers - expected).max() <= TOLERANCE
    assert (answers.argmax(axis=1) == expected.argmax(axis=1)).all()
    # The command finds the same, against the original that it remembers.
    assert all(isinstance(each, Comparison) for each in parity.comparisons)
    assert len(parity.comparisons) == len(files)
    assert parity.top1_agreement == 1.0
    assert parity.holds(TOLERANCE)
    assert np.allclose([each.expected for each in parity.comparisons], expected, atol=1e-5)


@pytest.mark.parametrize("name", LOWER)
def test_lower_precision_keeps_top1_and_parity_reports_the_difference(name, serves, photos):
    # Photographs that show one thing: where two classes are nearly as likely, any rounding may change their order.
    files = [photos / f"{which}.jpg" for which in ("cat", "coffee", "camera")]
    with serves(name) as served:
        parity = Parity(list(compare(served.entry, 1, served.triton, read_image_files(files))), [])
    assert parity.top1_agreement == 1.0
    assert 1e-6 < parity.largest < 0.03
    assert parity.from_stage("model") == pytest.approx(parity.largest, rel=0.01)
    assert max(parity.from_stage("decode"), parity.from_stage("resize")) < 1e-6


def test_parity_names_the_stage_that_was_changed(server, repository, serves, photos, tmp_path):
    """A preprocessor with another interpolation than training's is found, by the command and its exit code."""
    for name in PHOTOS:
        # The cache has the right answers to the others.
        (tmp_path / f"{name}.jpg").write_bytes(unlike_any(photo(name)))
    options = ("--triton", server.url, "--model-repository", repository)
    with serves("wrong-resize") as served:
        right = gateway("model", "parity", served.name, photos, *options).output
        config = repository / served.entry.preprocessor / "config.pbtxt"
        config.write_text(config.read_text().replace('"bicubic"', '"nearest"'))
        served.triton.load(served.entry.preprocessor)
        wrong = gateway("model", "parity", served.name, tmp_path, *options, code=1).output
    assert "same top-1       100 %" in right
    assert "the served answers are the original's" in right
    assert "most comes from resize" in wrong


def test_parity_refuses_an_original_that_is_gone_or_another(added_head, tmp_path):
    repository = Path(shutil.copytree(added_head[0], tmp_path / "models"))
    entry = read_entry(repository, "head")
    source = tmp_path / "head.pt"
    shutil.copy(entry.versions[1].spec.source, source)
    record = json.loads((repository / "head" / "origin.json").read_text())
    record["versions"]["1"]["spec"]["source"] = str(source)
    (repository / "head" / "origin.json").write_text(json.dumps(record))
    moved = read_entry(repository, "head")
    write_record(moved, repository)
    source.write_bytes(source.read_bytes() + b" ")
    with pytest.raises(EntryError, match="has changed since it was added"):
        list(compare(moved, 1, None, []))
    source.unlink()
    with pytest.raises(EntryError, match="no longer exists"):
        list(compare(moved, 1, None, []))


def test_evaluate_counts_what_the_service_answers(server, repository, serves, photos, tmp_path):
    files = image_files([photos])
    plot = tmp_path / "plots" / "confusion.png"
    options = [f"--plot={plot}", f"--triton={server.url}", f"--model-repository={repository}"]
    with serves("counted") as served:
        transforms = reference_transforms(served.entry.preprocessing)
        images = [transforms(Image.open(path).convert("RGB")) for path in files]
        classes = probabilities_of(served.network, images).argmax(axis=1).tolist()
        # Every photograph under the class that the network gives it, and one under another.
        for number, (path, found) in enumerate(zip(files, classes, strict=True)):
            folder = tmp_path / "data" / f"class_{(found + (number == 0)) % 5}"
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder)
        (tmp_path / "data" / f"class_{classes[0]}").mkdir(exist_ok=True)
        (tmp_path / "data" / f"class_{classes[0]}" / "broken.jpg").write_bytes(b"no photo")
        result = gateway("model", "evaluate", served.name, tmp_path / "data", *options)
    right = 100 * (len(files) - 1) / len(files)
    assert re.search(rf"top-1 +{right:.2f} %", result.output)
    assert "top-5" not in result.output  # it has five classes
    assert re.search(rf"images +{len(files)}, [\d.]+ a second", result.output)
    assert "not counted:" in result.output
    assert "broken.jpg" in result.output
    with Image.open(plot) as drawn:
        assert drawn.format == "PNG"
        assert min(drawn.size) > 300


def test_version_switch_under_load_loses_no_request(repository, server, serves, tmp_path):
    image = tmp_path / "image.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 60, 3), np.uint8)).save(image)
    payload, stop = image.read_bytes(), Event()
    options = ("--triton", server.url, "--model-repository", repository)

    def ask_on() -> dict[bytes, np.ndarray]:
        seen = {}
        with BlockingTriton(server.url) as triton:
            while not stop.is_set():
                values = triton.predict("versioned", [payload]).values
                seen[values.tobytes()] = values
        return seen

    with serves("versioned") as served, ThreadPoolExecutor(4) as pool:

        def ask(ensemble: str = "versioned") -> np.ndarray:
            return served.triton.predict(ensemble, [payload]).values

        callers = [pool.submit(ask_on) for _ in range(4)]
        try:
            one = ask()
            second = save_onnx(Head(seed=1), tmp_path / "second.onnx")
            gateway("model", "add", second, "--name", "versioned", "--version", 2, *options)
            two = ask("versioned.v2")
            assert not np.allclose(one, two, atol=1e-2)
            assert np.allclose(ask(), one, atol=1e-5)
            gateway("model", "versions", "versioned", "--use", 2, *options)
            assert np.allclose(ask(), two, atol=1e-5)
            assert np.allclose(ask("versioned.v1"), one, atol=1e-5)
            gateway("model", "versions", "versioned", "--use", 1, *options)
            assert np.allclose(ask(), one, atol=1e-5)
        finally:
            stop.set()
        # An exception in a caller, any failed request, comes out here.
        seen = {data: values for caller in callers for data, values in caller.result().items()}
    near = [[np.allclose(values, each, atol=1e-5) for each in (one, two)] for values in seen.values()]
    assert all(map(any, near))
    assert all(map(any, zip(*near, strict=True)))


SEEDS_CONFIG = """
name: "seeds_classifier"
platform: "pytorch_libtorch" # To tell which backend to use
max_batch_size: 4096 # Maximum Batch Size to expect

instance_group [
  {
    count: 2  # To tell how many copies of the model you want
    kind: KIND_GPU # CPU or GPU
    gpus: [0, 1]  # How many GPU to expect. [0] means one 1 GPU
  }
]

dynamic_batching { # Change this according to your needs
  preferred_batch_size: [32, 64, 128, 256, 512, 1024]
  max_queue_delay_microseconds: 100
}

input [  # Change this according to your model
  {
    name: "input__0"
    data_type: TYPE_FP32
    format: FORMAT_NCHW
    dims: [3, 224, 224]
  }
]

output [ # Change this according to your model
  {
    name: "output__0"
    data_type: TYPE_FP32
    dims: [5]
  }
]

response_cache {  # Optional
  enable: true
}
"""
"""A classifier's configuration as people write it, for a machine with two GPUs."""


def as_on_a_cpu(config: str) -> str:
    without = [line for line in config.splitlines() if "gpus:" not in line]
    return "\n".join(without).replace("KIND_GPU", "KIND_CPU")


def test_handwritten_configuration_is_served(server, serves):
    """Large batches, several instances and a cache on the classifier."""
    images = torch.rand((100, 3, 224, 224)).numpy()
    cat = (Path(__file__).parents[3] / "examples" / "cat.jpg").read_bytes()
    with serves("seeds") as served, InferenceServerClient(server.url) as client:
        classifier = served.entry.classifier
        given = InferInput("input__0", images.shape, "FP32").set_data_from_numpy(images)
        answers = [client.infer(classifier, [given]).as_numpy("output__0") for _ in range(2)]
        (statistics,) = client.get_inference_statistics(classifier).model_stats
        config = client.get_model_config(classifier).config
        largest = client.get_model_config(served.name).config.max_batch_size
        together = served.triton.predict(served.name, [cat] * 70).values
        alone = served.triton.predict(served.name, [cat]).values
    expected = probabilities_of(served.network, list(torch.from_numpy(images)))
    assert np.abs(answers[0] - expected).max() <= TOLERANCE
    assert np.array_equal(answers[0], answers[1])
    assert statistics.inference_stats.cache_hit.count == 1
    assert config.max_batch_size == largest == 4096
    assert config.instance_group[0].count == 2
    assert list(config.dynamic_batching.preferred_batch_size) == [32, 64, 128, 256, 512, 1024]
    assert together.shape == (70, 5)
    assert np.abs(together - alone).max() <= TOLERANCE


@pytest.mark.skipif(gpu_count() > 1, reason="this machine has the GPUs")
def test_configuration_with_missing_gpus_is_refused(server, added_head, repository):
    source, entry = added_head
    shutil.copytree(source / entry.classifier, repository / "on_gpus", ignore=shutil.ignore_patterns("configs"))
    config = SEEDS_CONFIG.replace("seeds_classifier", "on_gpus")
    (repository / "on_gpus" / "config.pbtxt").write_text(config)
    reason = r"instance group on_gpus_0 of model on_gpus specifies invalid or unsupported gpu id [01]"
    with BlockingTriton(server.url) as triton, pytest.raises(TritonRefused, match=reason):
        triton.load("on_gpus")
