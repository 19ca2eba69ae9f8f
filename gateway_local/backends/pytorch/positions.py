"""The order of tensors, which TorchScript knows by position."""

import re
from typing import Any


def by_position(tensors: list[dict[str, Any]]) -> list[str]:
    """The tensors' names in the order of the model's arguments: NAME__0, NAME__1, …, else in the order of the list."""
    names = [tensor["name"] for tensor in tensors]
    positions = [re.search(r"__(\d+)$", name) for name in names]
    if not all(positions):
        return names
    return sorted(names, key=lambda name: int(name.rpartition("__")[2]))
