"""From trained weights to served answers, on one real Triton: each is the eager model's on the reference transforms.

Models are added from every kind of source.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from gateway_local.server import EmbeddedTriton
from gateway_models.blocking_triton import BlockingTriton, TritonRefused
from gateway_models.networks.add import add
from gateway_models.proof.image_files import image_files, parted
from gateway_models.proof.parity import Parity, compare_served
from gateway_models.repository.entry import Entry, EntryError
from gateway_models.repository.preprocessing import AS_PIXELS, Preprocessing, reference_transforms
from gateway_models.repository.preprocessing_sources import from_weights
from gateway_models.repository.spec import Format, ImageTensor, ModelSpec, Precision, Serving
from tests.commands import gateway
from tests.gateway_models.networks.builders import (
    Head,
    lite,
    save_labels,
    save_onnx,
    save_program,
    save_torchscript,
    seeded,
    spec_of,
)
from tests.gateway_models.networks.functions import own_modules, save_function
from tests.gateway_models.networks.pretrained import save_vit, timm_network, vit
from tests.gateway_models.repository.entries import SMALL
from tests.photos import PHOTOS, photo, unlike_any
from tests.processes import wait_for
from tests.tritons import running_triton

pytestmark = [pytest.mark.triton, pytest.mark.long]

TOLERANCE = 1e-3
CLOSE = 1e-4
ONE_EACH = Serving(instances=1, preprocessor_instances=1)


@dataclass(frozen=True)
class Trained:
    """A model as its training left it, and how it is added.

    `preprocessing` may name torchvision's weights, which take seconds to import: they are looked up when a test runs.
    `save` writes what is added, and gives fields of its ModelSpec; `changes` are others.
    """

    network: Callable[[], nn.Module]
    preprocessing: Preprocessing | str | None
    save: Callable[[nn.Module, Path], dict[str, Any]]
    labels: int = 1000
    """How many there are; 0 where the source has its own."""
    file: str = ""
    """The name of the saved file without its suffix, where several models come from one; else the model's own."""
    written_as: Format = Format.TORCHSCRIPT
    """The format of the network in the repository, unless `changes` choose one."""
    tolerance: float = TOLERANCE
    changes: dict[str, Any] = field(default_factory=dict)


def _script(side: int) -> Callable[[nn.Module, Path], dict[str, Any]]:
    return lambda network, path: _once(path.with_suffix(".pt"), partial(save_torchscript, network, side=side))


def _onnx(side: int) -> Callable[[nn.Module, Path], dict[str, Any]]:
    return lambda network, path: _once(path.with_suffix(".onnx"), partial(save_onnx, network, side=side))


def _program(side: int) -> Callable[[nn.Module, Path], dict[str, Any]]:
    def save(network: nn.Module, path: Path) -> dict[str, Any]:
        return {**_once(path.with_suffix(".pt2"), partial(save_program, network, side=side)), "trust": True}

    return save


def _once(path: Path, save: Callable[[Path], Path]) -> dict[str, Any]:
    return {"source": str(path if path.exists() else save(path))}


def _weights(source: str) -> Callable[[nn.Module, Path], dict[str, Any]]:
    def save(network: nn.Module, path: Path) -> dict[str, Any]:
        torch.save(network.state_dict(), path.with_suffix(".pth"))
        return {"source": source, "weights": str(path.with_suffix(".pth"))}

    return save


def _safetensors(architecture: str, classes: int = 1000) -> Callable[[nn.Module, Path], dict[str, Any]]:
    """The same layers in the same order as timm's, under timm's names."""

    def save(network: nn.Module, path: Path) -> dict[str, Any]:
        weights, names = path.with_suffix(".safetensors"), timm_network(architecture, classes).state_dict().keys()
        save_file(dict(zip(names, network.state_dict().values(), strict=True)), weights)
        return {"source": f"timm:{architecture}", "weights": str(weights)}

    return save


LITE_FUNCTION = """
from pathlib import Path
import torch
from efficientnet_lite_pytorch import EfficientNet

def load():
    path = Path(__file__).parent / "weights.pth"
    return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(path)).eval()

def classify(images: torch.Tensor, network):
    with torch.inference_mode():
        return network(images)
"""


def _function(network: nn.Module, path: Path) -> dict[str, Any]:
    path.mkdir()
    torch.save(network.state_dict(), path / "weights.pth")
    source = f"{save_function(path, LITE_FUNCTION)}:classify"
    return {"source": source, "include": (path / "weights.pth",), "trust": True}


def _folder(network: nn.Module, path: Path) -> dict[str, Any]:
    """With a crop whose surplus is 3 for square pictures: transformers rounds its half down, torchvision to even."""
    from transformers import CLIPImageProcessor

    save_vit(network, path)
    CLIPImageProcessor(size={"shortest_edge": 35}, crop_size=32).save_pretrained(path)
    return {"source": str(path)}


def _head() -> nn.Module:
    return Head()


def _lite(
    save: Callable[[nn.Module, Path], dict[str, Any]],
    written_as: Format = Format.TORCHSCRIPT,
    tolerance: float = TOLERANCE,
    **changes,
) -> Trained:
    preprocessing = Preprocessing((224, 224), 224, "bicubic", (0.5,) * 3, (0.5,) * 3)
    named = {"file": "lite0", "written_as": written_as, "tolerance": tolerance, "changes": changes}
    return Trained(lambda: lite(), preprocessing, save, **named)


def _torchvision(architecture: str, weights: str, **changes) -> Trained:
    return Trained(lambda: seeded(architecture), weights, _weights(f"torchvision:{architecture}"), changes=changes)


def _timm(architecture: str) -> Trained:
    return Trained(lambda: timm_network(architecture), None, _safetensors(architecture, 5), 5, tolerance=CLOSE)


RESNET, MOBILENET = "ResNet18_Weights.IMAGENET1K_V1", "MobileNet_V3_Small_Weights.IMAGENET1K_V1"
FIVE = Preprocessing((256,), 224, "bilinear", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
FP32 = {
    "efficientnet-lite0": _lite(_script(224)),
    "resnet18": _torchvision("resnet18", RESNET),
    "mobilenet_v3_small": _torchvision("mobilenet_v3_small", MOBILENET),
    "efficientnet-lite0-onnx": _lite(_onnx(224), Format.ONNX),
    "resnet18-to-onnx": _torchvision("resnet18", RESNET, format=Format.ONNX),
    "five-classes": Trained(_head, FIVE, _script(224), 5),
    "efficientnet-lite0-of-pixels": _lite(_script(224), tensor=ImageTensor.UINT8),
    "five-classes-of-pixels-to-onnx": Trained(
        _head, FIVE, _script(224), 5, changes={"tensor": ImageTensor.UINT8, "format": Format.ONNX}
    ),
    "multi-label": Trained(_head, SMALL, _script(32), 5, changes={"multi_label": True}),
    "multi-label-onnx": Trained(
        lambda: Head(last=nn.Sigmoid()), SMALL, _onnx(32), 5, written_as=Format.ONNX, changes={"multi_label": True}
    ),
    "lite0-program": _lite(_program(224), tolerance=CLOSE),
    "lite0-program-to-onnx": _lite(_program(224), tolerance=CLOSE, format=Format.ONNX),
    "lite0-of-timm": _lite(_safetensors("tf_efficientnet_lite0"), tolerance=CLOSE),
    "lite0-function": _lite(_function, Format.FUNCTION, CLOSE),
    "vit-of-hugging-face": Trained(vit, None, _folder, 0, tolerance=CLOSE),
    "vit-of-timm": _timm("test_vit"),
    "resnet-of-timm": _timm("test_resnet"),
}
LOWER = {
    "efficientnet-lite0-bf16": _lite(_script(224), precision=Precision.BF16),
    "efficientnet-lite0-onnx-fp16": _lite(_onnx(224), precision=Precision.FP16),
    # fp16 is slow on a CPU, and a small network shows it as well.
    "five-classes-fp16": Trained(_head, FIVE, _script(224), 5, changes={"precision": Precision.FP16}),
}
MODELS = {
    **FP32,
    **LOWER,
    # Processes with ONNX start in a fraction of the time that torch takes to be imported.
    "wrong-resize": _lite(_onnx(224)),
    "counted": Trained(_head, FIVE, _onnx(224), 5),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("round-trips") / "models"


@pytest.fixture(scope="module")
def log() -> list[str]:
    """The lines that the Triton logs."""
    return []


@pytest.fixture(scope="module")
def server(runtime, repository, log) -> Iterator[EmbeddedTriton]:
    """A Triton without models, for each test to load its own."""
    repository.mkdir()
    with running_triton(runtime, repository, on_log=log.append, load_models=()) as server:
        yield server


@dataclass
class Served:
    """A model that was added and is served."""

    name: str
    entry: Entry
    network: nn.Module
    triton: BlockingTriton


@pytest.fixture(scope="module")
def serves(server, repository, tmp_path_factory) -> Callable:
    """Adds a model of MODELS, and serves it for as long as its test lasts."""
    folder = tmp_path_factory.mktemp("trained")

    @contextmanager
    def serves(name: str) -> Iterator[Served]:
        network = MODELS[name].network().eval()
        entry = add(request_of(name, network, folder), repository, print)
        with BlockingTriton(server.url) as triton:
            triton.load(entry.name)
            try:
                yield Served(name, entry, network, triton)
            finally:
                triton.unload(*entry.ensembles, entry.classifier, entry.preprocessor)

    return serves


def request_of(name: str, network: nn.Module, folder: Path) -> ModelSpec:
    trained = MODELS[name]
    saved = trained.save(network, folder / (trained.file or name))
    request = ModelSpec(
        **saved,
        name=name,
        labels=save_labels(folder / f"{name}.txt", trained.labels) if trained.labels else None,
        preprocessing=from_weights(said) if isinstance(said := trained.preprocessing, str) else said,
        serving=ONE_EACH,
    )
    return replace(request, **trained.changes)


def probabilities_of(network: nn.Module, images: list[torch.Tensor], *, multi_label: bool = False) -> np.ndarray:
    """The eager network's, one image at a time."""
    with torch.inference_mode():
        found = [network(image[None]) for image in images]
        scores = torch.cat([getattr(each, "logits", each) for each in found])
    if isinstance(getattr(network, "last", None), (nn.Softmax, nn.Sigmoid)):
        return scores.numpy()
    return (scores.sigmoid() if multi_label else scores.softmax(dim=1)).numpy()


def parity_of(entry: Entry, triton: BlockingTriton, files: list[Path]) -> Parity:
    found = Parity(*parted(compare_served(entry, 1, triton, files)))
    assert not found.refused
    return found


@pytest.mark.parametrize("name", FP32)
def test_served_answers_are_the_eager_models(name, serves, photos):
    files = image_files([photos])
    trained = MODELS[name]
    with own_modules(), serves(name) as served:
        transforms = reference_transforms(served.entry.spec.prepared)
        images = [transforms(Image.open(path).convert("RGB")) for path in files]
        expected = probabilities_of(served.network, images, multi_label=served.entry.spec.multi_label)
        answers = np.concatenate([served.triton.predict(name, [path.read_bytes()]).values for path in files])
        parity = parity_of(served.entry, served.triton, files)
    assert served.entry.format is trained.changes.get("format", trained.written_as)
    # Answers that are all alike would agree whatever was served.
    assert np.ptp(expected, axis=0).max() > 0.01
    assert np.abs(answers - expected).max() <= trained.tolerance
    assert (answers.argmax(axis=1) == expected.argmax(axis=1)).all()
    # The command finds the same, against the original that it remembers.
    assert len(parity.comparisons) == len(files)
    assert parity.top1_agreement == 1.0
    assert parity.holds(trained.tolerance)
    assert np.allclose([each.expected for each in parity.comparisons], expected, atol=1e-5)


@pytest.mark.parametrize("name", LOWER)
def test_lower_precision_keeps_top1_and_parity_reports_the_difference(name, serves, photos):
    # Photographs that show one thing: where two classes are nearly as likely, any rounding may change their order.
    files = [photos / f"{which}.jpg" for which in ("cat", "coffee", "camera")]
    with serves(name) as served:
        parity = parity_of(served.entry, served.triton, files)
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
        right = gateway("model", "verify", served.name, photos, *options).output
        config = repository / served.entry.preprocessor / "config.pbtxt"
        config.write_text(config.read_text().replace('"bicubic"', '"nearest"'))
        served.triton.load(served.entry.preprocessor)
        wrong = gateway("model", "verify", served.name, tmp_path, *options, code=1).output
    assert "same top-1      100 %" in right
    assert "the served answers are the original's" in right
    assert "most comes from resize" in wrong


def test_parity_refuses_an_original_that_is_gone_or_another(added_head, tmp_path):
    entry = added_head[1]
    source = Path(shutil.copy(entry.versions[1].spec.source, tmp_path / "head.pt"))
    moved = entry.changed(source=str(source))
    source.write_bytes(source.read_bytes() + b" ")
    with pytest.raises(EntryError, match="has changed since it was added"):
        list(compare_served(moved, 1, None, []))
    source.unlink()
    with pytest.raises(EntryError, match="no longer exists"):
        list(compare_served(moved, 1, None, []))


def test_evaluate_counts_what_the_service_answers(server, repository, serves, photos, tmp_path):
    files = image_files([photos])
    plot = tmp_path / "plots" / "confusion.png"
    options = [f"--plot={plot}", f"--triton={server.url}", f"--model-repository={repository}"]
    with serves("counted") as served:
        transforms = reference_transforms(served.entry.spec.prepared)
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
    assert re.search(rf"images +{len(files)}\n", result.output)
    assert "not counted:" in result.output
    assert "broken.jpg" in result.output
    with Image.open(plot) as drawn:
        assert drawn.format == "PNG"
        assert min(drawn.size) > 300


FAILS = """
import sys
import numpy as np
from helper import weights

def load():
    print("loaded by", __name__)
    return weights()

def classify(images, model):
    if images.shape[0] == 1 and images.max() < 3:
        raise ValueError("a secret of the code")
    colours = images.mean(axis=(1, 2)) / 255
    return np.concatenate([colours, 1 - colours], axis=1) * model - 4
"""


def test_function_gives_original_answers_and_an_error_per_request(server, repository, log, photos, tmp_path):
    """With a file that it imports."""
    (tmp_path / "helper.py").write_text("def weights():\n    return 7.0\n")
    changes = {
        "name": "colours",
        "preprocessing": Preprocessing((40,), 32, "bilinear", **AS_PIXELS),
        "trust": True,
        "serving": ONE_EACH,
        "include": (tmp_path / "helper.py",),
    }
    entry = add(
        spec_of(f"{save_function(tmp_path, FAILS)}:classify", tmp_path, classes=6, **changes), repository, print
    )
    files = image_files([photos])[:3]
    # Another picture than any that the cache has seen.
    black = b"P6 32 32 255\n" + bytes(3 * 32 * 32)
    with own_modules(), BlockingTriton(server.url) as triton:
        triton.load(entry.name)
        assert parity_of(entry, triton, files).holds(1e-6)
        with pytest.raises(TritonRefused, match=r"classify of colours\.py failed with ValueError; Triton's log has"):
            triton.predict("colours", [black])
        # Triton's log may come after its answer.
        wait_for(lambda: "ValueError: a secret of the code" in "\n".join(log))
        assert re.search(r"code/colours\.py.*line \d+, in classify", "\n".join(log))
        assert parity_of(entry, triton, files).holds(1e-6)
