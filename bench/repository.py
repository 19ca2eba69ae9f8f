"""The measured model repository: a copy of the project's with another model."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.output import Progress
from gateway.triton.contract import CLASSIFIER
from gateway_local import cpu_network
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY, default_cache_dir
from gateway_local.sizing import FOLDER
from gateway_models.networks.export import EFFICIENTNET_LITE0, INPUT_SIZE, Recipe, export

if TYPE_CHECKING:
    from torch import nn


def _mobilenet_v3_small() -> "nn.Module":
    import torch
    from torch import nn
    from torchvision.models import mobilenet_v3_small

    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = mobilenet_v3_small(weights=None)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = None
        # Batch statistics of random inputs. Without them the signal vanishes, and every class gets the same score.
        model.train()(torch.rand((16, 3, INPUT_SIZE, INPUT_SIZE)) * 2 - 1)
        return nn.Sequential(model.eval(), nn.Softmax(dim=1))


MOBILENET_V3_SMALL = Recipe(
    "mobilenet-v3-small-untrained", _mobilenet_v3_small, ("torchvision",), EFFICIENTNET_LITE0.preprocessing
)
RECIPES: dict[str, Recipe] = {"mobilenet-v3-small": MOBILENET_V3_SMALL, "efficientnet-lite0": EFFICIENTNET_LITE0}
GENERATED = ("model.pt", *cpu_network.FILES, "labels.txt")


@contextmanager
def repository(model: str, report: Progress) -> Iterator[Path]:
    """A copy of triton_models with `model` in it: a name of RECIPES, or a model.pt of the 1,000 ImageNet classes.

    Raises FileNotFoundError, and what `export` raises.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        copy = Path(folder) / "triton_models"
        ignored = shutil.ignore_patterns(*GENERATED, FOLDER, "__pycache__")
        shutil.copytree(DEFAULT_MODEL_REPOSITORY, copy, ignore=ignored)
        exported = _exported(RECIPES.get(model, EFFICIENTNET_LITE0), copy, report)
        path = exported / "1" / "model.pt" if model in RECIPES else Path(model)
        (copy / CLASSIFIER / "1").mkdir(exist_ok=True)
        shutil.copy2(path, copy / CLASSIFIER / "1" / "model.pt")
        for name in cpu_network.FILES:
            if (path.with_name(name)).is_file():
                shutil.copy2(path.with_name(name), copy / CLASSIFIER / "1")
        shutil.copy2(exported / "labels.txt", copy / CLASSIFIER)
        yield copy


def _exported(recipe: Recipe, configuration: Path, report: Progress) -> Path:
    """The classifier's folder in a repository that is kept after the run, since an export takes long."""
    kept = default_cache_dir() / "bench" / recipe.name
    shutil.copytree(configuration, kept, dirs_exist_ok=True)
    export(recipe, kept, report)
    return kept / CLASSIFIER
