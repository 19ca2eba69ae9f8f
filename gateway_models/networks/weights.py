"""Reads weights from a file without running code, and loads them into a network."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import shorten

import torch
from torch import Tensor, nn

from gateway_models.networks.errors import ModelError, library
from gateway_models.networks.file_kinds import SAFETENSORS, alone, kind_of

REASON_CHARACTERS = 300
MAX_DEPTH = 8
"""Levels of dictionaries in a checkpoint."""
COUNTER = "num_batches_tracked"
"""The end of the names of tensors that old state dicts lack and that inference does not use."""


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors in safetensors, a state dict or a checkpoint, such as state_dict.fc.weight; raises ModelError."""
    values = _safetensors(path) if kind_of(path) is SAFETENSORS else _torch(path)
    found = dict(_flattened(values, ""))
    if not found:
        raise ModelError(f"{path} contains no weights")
    return found


def _flattened(values: object, name: str, depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    if isinstance(values, Tensor):
        yield name, values
    elif isinstance(values, Mapping) and depth < MAX_DEPTH:
        for key, value in values.items():
            yield from _flattened(value, f"{name}.{key}" if name else str(key), depth + 1)


def load_into(network: nn.Module, tensors: Mapping[str, Tensor], weights: str, source: str) -> nn.Module:
    """Load weights into a network and switch it to eval mode; raises ModelError if they do not fit.

    They are the tensors of one prefix, which checkpoints, DataParallel, torch.compile and Lightning add, whose names
    are exactly the network's. `source` is the network's, such as torchvision:resnet50.
    """
    wanted = network.state_dict()
    last = next(reversed([name for name in wanted if not name.endswith(COUNTER)]), "")
    prefixes = {name.removesuffix(last) for name in tensors if f".{name}".endswith(f".{last}")} | {""}
    sets = {
        prefix: {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        for prefix in sorted(prefixes)
    }
    fit = {prefix: state for prefix, state in sets.items() if _has_names(state, wanted)}
    if len(fit) > 1 and not _are_equal(list(fit.values())):
        raise ModelError(
            f"{weights} has several sets of weights of {source}: {' and '.join(name.rstrip('.') for name in fit)}. "
            "Save those that you mean alone, and use that file: torch.save(model.state_dict(), 'weights.pt')"
        )
    state = next(iter(fit.values()), None) or max(sets.values(), key=lambda each: len(each.keys() & wanted.keys()))
    try:
        network.load_state_dict(state)
    except RuntimeError as exc:
        reason = shorten(str(exc).partition("\n")[2], REASON_CHARACTERS, placeholder=" …")
        raise ModelError(
            f"{weights} does not contain weights of {source}: {reason} Name the architecture that they were trained "
            "with; for another number of classes give --labels FILE with as many labels"
        ) from exc
    return network.eval()


def _has_names(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> bool:
    """Whether these are the tensors of a network, by their names."""
    return state.keys() <= wanted.keys() and all(name in state or name.endswith(COUNTER) for name in wanted)


def _are_equal(sets: Sequence[Mapping[str, Tensor]]) -> bool:
    return all(torch.equal(sets[0][name], each[name]) for each in sets[1:] for name in each)


def _torch(path: Path) -> object:
    try:
        # weights_only makes it safe: only tensors and containers are loaded.
        # timm's train.py also saves an argparse.Namespace, which is a container too.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as exc:  # pickle, zip and torch have no common base class
        raise ModelError(
            f"{path} cannot be read as plain weights, and anything else could run code. If you trust it, {alone(path)}"
        ) from exc


def _safetensors(path: Path) -> object:
    safetensors = library("safetensors.torch", "files of safetensors", "local")
    try:
        return safetensors.load_file(path)
    except Exception as exc:  # safetensors and the file system have no common base class
        raise ModelError(f"{path} is damaged: {exc}") from exc
