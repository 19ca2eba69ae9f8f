"""The runtime of a repository's networks on this CPU, and the machine on which `gateway model tune` measured it."""

from pathlib import Path

from gateway.triton.configs import read_model_configs, steps
from gateway.triton.footprint import TORCH
from gateway_local.cpu_network import choice
from gateway_local.elastic import recorded

WARNING = "warning: "
TUNING = "tuning.json"
"""The file in a model's folder with the table of `tune` and the machine that it was measured on."""
ORIGIN = "origin.json"
"""The record of `gateway model add`, without which a model cannot be tuned."""


def runtimes(repository: Path, model: str, *, gpus: int) -> list[str]:
    """A line about the runtime of `model`'s TorchScript on this CPU and the reason; a warning per damaged record."""
    if gpus:
        return []
    configs = read_model_configs(repository)
    lines = []
    own = set(steps(configs[model])) if model in configs else set()
    for name, config in configs.items():
        if (config.backend or config.platform) not in TORCH:
            continue
        for file in sorted(repository.glob(f"{name}/[0-9]*/model.pt")):
            runtime, reason, damaged = choice(file)
            text = f"{name} version {file.parent.name} runs by {runtime.described} on this CPU: {reason}"
            if (threads := recorded(file)) is not None and threads.described:
                text += f"; {threads.described}"
            if damaged:
                lines.append(f"{WARNING}{text}; add the model again, or run `gateway model tune`")
            elif name in own:
                lines.append(text)
    return lines
