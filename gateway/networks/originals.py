"""The original of a served model: the network as training left it."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gateway.networks.files import ModelFileError
from gateway.networks.function_process import FunctionProcess
from gateway.networks.functions import find_function, is_function
from gateway.networks.sources import RECIPE, TORCHVISION, digest
from gateway.networks.torchscript import load_torchscript
from gateway.networks.trial import Ending, activation
from gateway.repository.entry import Entry, EntryError, Version
from gateway.repository.preprocessing import weights_enum

if TYPE_CHECKING:
    from collections.abc import Mapping

CHECKPOINT_KEYS = ("state_dict", "model_state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.", "model.")
"""What DataParallel, torch.compile and Lightning put before the names of weights."""


def original_module(source: str, weights: str, classes: int | None) -> nn.Module:
    """The network of a torchvision:ARCH, a recipe: of this project or a TorchScript file, ready to be asked.

    `weights` is a file, the name of torchvision weights or "". Raises UserError.
    """
    if source.startswith(TORCHVISION):
        return _torchvision(source.removeprefix(TORCHVISION), weights, classes)
    if source.startswith(RECIPE):
        from gateway.networks.export import RECIPES

        return RECIPES[source.removeprefix(RECIPE)].build().eval()
    module: nn.Module = load_torchscript(Path(source))
    return module


def original_probabilities(entry: Entry, version: Version) -> Callable[[Tensor], Tensor]:
    """What a version's original makes of fp32 [N, 3, side, side], with softmax or sigmoid where it has none.

    Raises EntryError where the original is no longer there or another, and ModelFileError.
    """
    if is_function(version.source):
        return _function_probabilities(entry, version)
    file = Path(version.weights if version.source.startswith(TORCHVISION) and version.sha256 else version.source)
    if version.sha256:
        if not file.is_file():
            raise EntryError(f"the original, {file}, no longer exists: put it back, or add the model again")
        if digest(file) != version.sha256:
            raise EntryError(f"{file} has changed since it was added: add it again as a new version")
    finished = activation(Ending(version.ending), multi_label=entry.multi_label)
    if file.suffix == ".onnx":
        from gateway.networks.onnx_graph import runner

        run: Callable[[Tensor], Any] = runner(file)
    else:
        run = original_module(version.source, version.weights, entry.classes)

    def probabilities(images: Tensor) -> Tensor:
        with torch.inference_mode():
            return finished(run(images).float())

    return probabilities


def _function_probabilities(entry: Entry, version: Version) -> Callable[[Tensor], Tensor]:
    source = find_function(version.source, [Path(path) for path in version.include])
    if source.digest() != version.sha256:
        raise EntryError(
            f"{source.path}, or what goes with it, has changed since it was added: add it again as a new version"
        )
    finished = activation(Ending(version.ending), multi_label=entry.multi_label)
    # Somebody's code runs in a process of its own.
    run = FunctionProcess(source, input=version.input, output=version.output)
    return lambda images: finished(run(images))


def _torchvision(architecture: str, weights: str, classes: int | None) -> nn.Module:
    from torchvision.models import get_model

    if weights and not Path(weights).is_file():
        try:
            module: nn.Module = get_model(architecture, weights=weights_enum(weights))
        except OSError as exc:
            raise ModelFileError(
                f"its weights {weights} cannot be downloaded ({exc}): fetch the file on a machine with a network and "
                "say --weights FILE"
            ) from exc
        return module.eval()
    state = read_state_dict(Path(weights))
    # Networks with a second head for training have it only where it is asked for.
    extra = {"aux_logits": True} if any(name.startswith(("aux", "AuxLogits")) for name in state) else {}
    try:
        module = get_model(architecture, weights=None, **({"num_classes": classes} if classes else {}), **extra)
    except TypeError:
        module = get_model(architecture, weights=None, **({"num_classes": classes} if classes else {}))
    try:
        module.load_state_dict(state)
    except RuntimeError as exc:
        lines = [line.strip() for line in str(exc).splitlines()]
        raise ModelFileError(
            f"{weights} does not hold weights of {architecture} with {classes or 1000} classes: "
            f"{lines[1] if len(lines) > 1 else lines[0]} Other classes than these: --labels FILE, one label a line"
        ) from exc
    return module.eval()


def read_state_dict(path: Path) -> "Mapping[str, Tensor]":
    """The weights in a state dict or a checkpoint, read without running code; raises ModelFileError."""
    try:
        # weights_only is what makes it safe: tensors and containers, nothing that could run.
        values = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as exc:  # of pickle, zip, torch
        raise ModelFileError(
            f"{path} cannot be read as weights alone, and anything more could run code. Where you trust it, load it in "
            "Python and save its weights: torch.save(model.state_dict(), 'weights.pt')"
        ) from exc
    for key in CHECKPOINT_KEYS:
        if isinstance(values, dict) and isinstance(values.get(key), dict):
            values = values[key]
            break
    if not isinstance(values, dict) or not all(isinstance(value, Tensor) for value in values.values()) or not values:
        raise ModelFileError(f"{path} holds no state dict, neither itself nor under {', '.join(CHECKPOINT_KEYS)}")
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in values):
            values = {name.removeprefix(prefix): value for name, value in values.items()}
    return values
