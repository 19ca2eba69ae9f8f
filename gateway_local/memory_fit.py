"""Whether the models of a repository fit into memory, and what to do if they do not."""

from enum import StrEnum

from gateway.errors import UserError
from gateway.settings import MemoryCheck
from gateway_machine.capacity import NetworkRuntime
from gateway_machine.gpus import gpu_count
from gateway_machine.memory import MACHINE, Memory
from gateway_plugins.demand.footprint import NEAR, OVERRIDE, Need, size


class MemoryShort(UserError):
    """The models need more memory than there is; the message names both amounts and what to do."""


class Fit(StrEnum):
    """How a need compares with the free memory."""

    ENOUGH = "enough"
    NEAR = "near"
    """It may not suffice under load."""
    SHORT = "short"
    """The models cannot even be loaded."""


def fit(wanted: Need, memory: Memory, *, beside_bytes: int) -> Fit:
    """Compare the need of models with the free memory; `beside_bytes` is for the gateway and the response cache."""
    if wanted.least_bytes > memory.free_bytes:
        return Fit.SHORT
    return Fit.NEAR if wanted.usual_bytes + beside_bytes > NEAR * memory.free_bytes else Fit.ENOUGH


def check(wanted: Need, memory: Memory, *, beside_bytes: int, how: MemoryCheck) -> str | None:
    """A warning if memory is or may become short, else None; raises MemoryShort if models cannot be loaded."""
    if how is MemoryCheck.OFF:
        return None
    found = fit(wanted, memory, beside_bytes=beside_bytes)
    if found is Fit.ENOUGH:
        return None
    text = "\n".join([sentence(wanted, memory, beside_bytes=beside_bytes), *table(wanted), *advice(wanted)])
    if found is Fit.SHORT and how is MemoryCheck.REFUSE:
        raise MemoryShort(*text.split("\n"), f"To start nevertheless: {OVERRIDE}")
    return text


def sentence(wanted: Need, memory: Memory, *, beside_bytes: int) -> str:
    """The needed and the free memory, as one line."""
    of = "" if memory.where == MACHINE else f" of the {size(memory.limit_bytes)} of {memory.where}"
    return (
        f"{size(memory.free_bytes)}{of} are free; the models take {size(wanted.least_bytes)} once they are loaded, and "
        f"with the gateway up to {size(wanted.usual_bytes + beside_bytes)} under load"
    )


def table(wanted: Need, most: int = 12) -> list[str]:
    """A line for each model, the largest first."""
    rows = sorted(wanted.footprints, key=lambda each: -each.processes * each.usual_bytes)
    lines = [
        f"  {each.model:<32} {each.processes:>2} × {size(each.least_bytes):>8} loaded, {size(each.usual_bytes):>8} "
        f"under load  {each.runtime.value}, {'measured' if each.measured else 'estimated'}"
        for each in rows[:most]
    ]
    return [*lines, *([f"  … and {len(rows) - most} more"] if len(rows) > most else [])]


def advice(wanted: Need) -> list[str]:
    """Ways to reduce the memory of models, the most effective first."""
    runtimes = {each.runtime for each in wanted.footprints}
    found = []
    if any(each.processes > 1 for each in wanted.footprints):
        found.append(
            "fewer processes: leave `count` out of instance_group in config.pbtxt, and those that fit are started; or "
            "write count: 1, `gateway model add … --instances 1`"
        )
    if NetworkRuntime.TORCH_CUDA in runtimes and not gpu_count():
        found.append(
            "torch's CPU build: pip install --force-reinstall --no-deps torch torchvision --index-url URL, with the "
            "index that PyTorch's installation page names for CPU"
        )
    if runtimes & {NetworkRuntime.TORCH_CUDA, NetworkRuntime.TORCH_CPU}:
        found.append("ONNX Runtime instead of PyTorch: `gateway model add … --format onnx`")
    found.append("fewer models: `gateway model remove NAME`, or POST /models/NAME/unload")
    return ["To need less:", *(f"  {line}" for line in found)]
