"""Reads weights from a file without running code, and loads them into a network."""

import argparse
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from gateway_models.networks.file_kinds import EXPORT, FileKind, ModelFileError, alone, kind_of

CHECKPOINT_KEYS = ("state_dict", "model_state_dict", "model", "state_dict_ema")
OF_TRAINING = ("criterion.", "loss.", "loss_fn.")
"""Prefixes of weights that only training needs, as Lightning writes them."""
FAULTS_SHOWN = 2
"""Weights that an error message lists at most."""
HEAD_TENSORS = 2
"""The weight and the bias of a last layer."""
_PREFIXES = ("module.", "_orig_mod.", "model.", "timm_model.")
"""Prefixes that DataParallel, torch.compile, Lightning and TimmWrapper of transformers add to the names of weights."""


def read_state_dict(path: Path) -> Mapping[str, Tensor]:
    """The weights in safetensors, a state dict or a checkpoint; raises ModelFileError."""
    values = _safetensors(path) if kind_of(path) is FileKind.SAFETENSORS else _torch(path)
    for key in CHECKPOINT_KEYS:
        if isinstance(values, dict) and isinstance(values.get(key), dict):
            values = values[key]
            break
    if not isinstance(values, dict) or not all(isinstance(value, Tensor) for value in values.values()) or not values:
        raise ModelFileError(f"{path} contains no state dict, neither itself nor under {', '.join(CHECKPOINT_KEYS)}")
    values = {name: value for name, value in values.items() if not name.startswith(OF_TRAINING)}
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in values):
            values = {name.removeprefix(prefix): value for name, value in values.items()}
    return values


def load_into(network: nn.Module, state: Mapping[str, Tensor], weights: str, source: str) -> nn.Module:
    """Load weights into a network and switch it to eval mode; raises ModelFileError if they do not fit.

    `source` is the network's, such as torchvision:resnet50.
    """
    try:
        network.load_state_dict(state)
    except RuntimeError as exc:
        wanted = network.state_dict()
        shapes = [(name, list(state[name].shape), list(wanted[name].shape)) for name in wanted if name in state]
        other = [(name, given, expected) for name, given, expected in shapes if given != expected]
        faults = [f"{name} is missing" for name in wanted if name not in state]
        faults += [f"{name} is not in the network" for name in state if name not in wanted]
        # Only the layer of the classes differs.
        if not faults and all(given[1:] == expected[1:] for _, given, expected in other) and len(other) <= HEAD_TENSORS:
            classes = other[0][1][0]
            advice = f"They have {classes} classes: use --labels FILE with {classes} labels"
        else:
            advice = (
                "Name the architecture that they were trained with, or build the network in Python, load them into it "
                f"and save it by {EXPORT}"
            )
        faults += [f"{name} is {given} and not {expected}" for name, given, expected in other]
        more = f" and {len(faults) - FAULTS_SHOWN:,} more" if len(faults) > FAULTS_SHOWN else ""
        raise ModelFileError(
            f"{weights} does not contain weights of {source}: {', '.join(faults[:FAULTS_SHOWN])}{more}. {advice}"
        ) from exc
    return network.eval()


def _torch(path: Path) -> object:
    try:
        # weights_only makes it safe: only tensors and containers are loaded.
        # timm's train.py also saves an argparse.Namespace, which is a container too.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as exc:  # pickle, zip and torch have no common base class
        raise ModelFileError(
            f"{path} cannot be read as plain weights, and anything else could run code. If you trust it, "
            f"{alone(path, kind_of(path))}"
        ) from exc


def _safetensors(path: Path) -> object:
    try:
        from safetensors.torch import load_file
    except ImportError as exc:
        raise ModelFileError(f"{path} needs {exc.name}: pip install safetensors") from exc
    try:
        return load_file(path)
    except Exception as exc:  # safetensors and the file system have no common base class
        raise ModelFileError(f"{path} is damaged: {exc}") from exc
