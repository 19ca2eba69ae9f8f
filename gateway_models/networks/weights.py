"""Weights out of a file, read without running code, and put into a network that they must fit."""

import argparse
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from gateway_models.networks.file_kinds import Kind, ModelFileError, alone, kind_of

CHECKPOINT_KEYS = ("state_dict", "model_state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.", "model.")
"""What DataParallel, torch.compile and Lightning put before the names of weights."""


def read_state_dict(path: Path) -> Mapping[str, Tensor]:
    """The weights in safetensors, a state dict or a checkpoint; raises ModelFileError."""
    values = _safetensors(path) if kind_of(path) is Kind.SAFETENSORS else _torch(path)
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


def load_into(
    network: nn.Module, state: Mapping[str, Tensor], weights: str, architecture: str, classes: int | None
) -> nn.Module:
    """Put weights into a network, and make it ready to be asked; raises ModelFileError where they do not fit."""
    try:
        network.load_state_dict(state)
    except RuntimeError as exc:
        lines = [line.strip() for line in str(exc).splitlines()]
        raise ModelFileError(
            f"{weights} does not hold weights of {architecture} with {classes or 1000} classes: "
            f"{lines[1] if len(lines) > 1 else lines[0]} Other classes than these: --labels FILE, one label a line"
        ) from exc
    return network.eval()


def _torch(path: Path) -> object:
    try:
        # weights_only is what makes it safe: tensors and containers, nothing that could run.
        # A Namespace, which timm's train.py saves beside them, is a container too.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as exc:  # of pickle, zip, torch
        raise ModelFileError(
            f"{path} cannot be read as weights alone, and anything more could run code. If you trust it, "
            f"{alone(path, kind_of(path))}"
        ) from exc


def _safetensors(path: Path) -> object:
    try:
        from safetensors.torch import load_file
    except ImportError as exc:
        raise ModelFileError(f"{path} needs {exc.name}: pip install safetensors") from exc
    try:
        return load_file(path)
    except Exception as exc:  # of safetensors, which has an error of its own, and of the file system
        raise ModelFileError(f"{path} is damaged: {exc}") from exc
