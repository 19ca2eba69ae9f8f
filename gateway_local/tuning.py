"""Which models `gateway model tune` has measured on this machine, and a hint for those that it has not."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.triton.model_config import ModelConfig, steps
from gateway_local.cpu_features import cpu_name
from gateway_local.cpu_network import choice
from gateway_local.paths import at
from gateway_machine.cores import usable_cores
from gateway_plugins.demand.footprint import TORCH, runs_in_onnxruntime

WARNING = "warning: "
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
    return (
        f"{network.name} runs by TorchScript on this CPU; `gateway model tune {name}{at(repository)}` may find "
        "a faster runtime"
    )


def _untuned(repository: Path, name: str, configs: Mapping[str, ModelConfig]) -> ModelConfig | None:
    """The step of a model that PyTorch runs, if the model can be tuned and was not tuned here."""
    if not (repository / name / ORIGIN).is_file() or _tuned_here(repository / name / TUNING):
        return None
    networks = (configs[step] for step in steps(configs[name]) if step in configs)
    by_torch = (each for each in networks if (each.backend or each.platform) in TORCH)
    return next((each for each in by_torch if not runs_in_onnxruntime(repository / each.name)), None)


def runtimes(repository: Path, configs: Mapping[str, ModelConfig], model: str, *, gpus: int) -> list[str]:
    """A line about what runs the TorchScript of `model` on this CPU and why, and a warning for each damaged record."""
    if gpus:
        return []
    lines = []
    own = set(steps(configs[model])) if model in configs else set()
    for name, config in configs.items():
        if (config.backend or config.platform) not in TORCH:
            continue
        for file in sorted(repository.glob(f"{name}/[0-9]*/model.pt")):
            runtime, reason, damaged = choice(file)
            text = f"{name} version {file.parent.name} runs by {runtime.described} on this CPU: {reason}"
            if damaged:
                lines.append(f"{WARNING}{text}; add the model again, or run `gateway model tune`")
            elif name in own:
                lines.append(text)
    return lines


def _tuned_here(path: Path) -> bool:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("machine") == machine()
