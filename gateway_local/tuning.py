"""Which models `gateway model tune` has measured on this machine, and a hint for those that it has not."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.cores import usable_cores
from gateway.triton.footprint import TORCH
from gateway.triton.model_config import ModelConfig, steps
from gateway_local.cpu_features import cpu_name
from gateway_local.paths import at

TUNING = "tuning.json"
"""The file in a model's folder with the table of `tune` and the machine that it was measured on."""
ORIGIN = "origin.json"
"""The record of `gateway model add`, without which a model cannot be tuned."""


def machine() -> dict[str, Any]:
    """What a measurement depends on: the processor and the number of cores that this process may use."""
    return {"cpu": cpu_name(), "cores": usable_cores()}


def hint(repository: Path, configs: Mapping[str, ModelConfig], model: str, *, gpus: int) -> str | None:
    """One line about a network that another runtime would probably run faster, `model`'s if it is one of them.

    None if every network runs on a GPU, in another runtime than PyTorch, or has been tuned on this machine.
    """
    if gpus:
        return None
    found = {name: network for name in configs if (network := _untuned(repository, name, configs)) is not None}
    name = model if model in found else next(iter(found), None)
    if name is None:
        return None
    network = found[name]
    by = "torch.export" if network.default_model_filename.endswith(".pt2") else "TorchScript"
    return (
        f"{network.name} runs by {by} on this CPU; `gateway model tune {name}{at(repository)}` may find a faster "
        "runtime"
    )


def _untuned(repository: Path, name: str, configs: Mapping[str, ModelConfig]) -> ModelConfig | None:
    """The step of a model that PyTorch runs, if the model can be tuned and was not tuned here."""
    if not (repository / name / ORIGIN).is_file() or _tuned_here(repository / name / TUNING):
        return None
    networks = (configs[step] for step in steps(configs[name]) if step in configs)
    return next((each for each in networks if (each.backend or each.platform) in TORCH), None)


def _tuned_here(path: Path) -> bool:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("machine") == machine()
