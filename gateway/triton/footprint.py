"""Memory of the processes of a model repository: recorded when a model was added, else from PROCESS_MEMORY.

Triton runs each instance of each version of a model in a separate process. A process has private memory, and maps the
libraries of its runtime, which all processes of that runtime share.
"""

import contextlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gateway.errors import LoadFailed
from gateway.machine.capacity import PROCESS_MEMORY, NetworkRuntime
from gateway.machine.memory import Memory
from gateway.settings import GIB, MIB
from gateway.triton.configs import (
    ModelConfig,
    ModelInstanceGroup,
    instances_on_gpus,
    network_step,
    parameters,
    read_model_configs,
    steps,
)
from gateway.triton.contract import PROCESS_MEMORY_PARAMETER

SERVER_BYTES = 64 * MIB
"""Memory of tritonserver itself, without its response cache."""
LONE_BYTES = 32 * MIB
"""Activations of one image in the second session of a network whose lone images have several threads."""
TORCH, ONNX = {"pytorch", "pytorch_libtorch"}, {"onnxruntime", "onnxruntime_onnx"}


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """Memory of one process of a network on a CPU, measured when the network was added."""

    runtime: NetworkRuntime
    loaded_bytes: int
    """Private memory after the first image."""
    peak_bytes: int
    """The most, in a batch as large as under load."""

    @property
    def text(self) -> str:
        """The value of PROCESS_MEMORY_PARAMETER."""
        document = {"runtime": self.runtime.name, "loaded_bytes": self.loaded_bytes, "peak_bytes": self.peak_bytes}
        return json.dumps(document)

    @classmethod
    def of(cls, ensemble: ModelConfig) -> Self | None:
        """The record in the configuration of an ensemble; None if it has none, or one that cannot be read."""
        try:
            found = json.loads(parameters(ensemble)[PROCESS_MEMORY_PARAMETER])
            return cls(NetworkRuntime[found["runtime"]], int(found["loaded_bytes"]), int(found["peak_bytes"]))
        except (KeyError, ValueError, TypeError):
            return None


def records(configs: Mapping[str, ModelConfig]) -> dict[str, MemoryRecord]:
    """The record of each network, by its name: the largest of its versions, which have an ensemble each."""
    found: dict[str, MemoryRecord] = {}
    for config in configs.values():
        if (record := MemoryRecord.of(config)) is not None and (network := network_step(config)):
            found[network] = max(found.get(network, record), record, key=lambda each: each.peak_bytes)
    return found


@dataclass(frozen=True, slots=True)
class Footprint:
    """The processes of one model, and the private memory of each of them."""

    model: str
    runtime: NetworkRuntime
    processes: int
    least_bytes: int
    """Private memory of each process once it is loaded."""
    usual_bytes: int
    """Private memory of each process under load."""
    measured: bool = False
    gpu_bytes: int = 0
    """Memory of all of its instances on one GPU under load: weights and activations."""


@dataclass(frozen=True, slots=True)
class Need:
    """The memory of some models together, with tritonserver."""

    footprints: tuple[Footprint, ...]
    budget_bytes: int = 0
    """Memory of models on demand, which may be used in any case."""

    @property
    def least_bytes(self) -> int:
        """Once they are loaded, without the libraries, whose pages the kernel can drop and read again."""
        return SERVER_BYTES + sum(each.processes * each.least_bytes for each in self.footprints)

    @property
    def usual_bytes(self) -> int:
        """Under load."""
        shared = sum(PROCESS_MEMORY[runtime].shared_bytes for runtime in {each.runtime for each in self.footprints})
        own = sum(each.processes * each.usual_bytes for each in self.footprints)
        return max(self.budget_bytes, SERVER_BYTES + shared + own)


def need(repository: Path, configs: Mapping[str, ModelConfig], *, gpus: int = 0) -> Need:
    """The memory that a repository's models need."""
    known = records(configs)
    models = (each for each in configs.items() if not each[1].HasField("ensemble_scheduling"))
    return Need(
        tuple(footprint(name, config, repository / name, known.get(name), gpus=gpus) for name, config in models)
    )


def check_load(name: str, repository: Path, memory: Memory | None) -> None:
    """Raise LoadFailed if a model certainly needs more memory than is free.

    A model that is loaded already counts as well: Triton ends its processes after the new ones have started.
    """
    configs = read_model_configs(repository, "configs/sized.pbtxt")
    if memory is None or name not in configs:
        return
    parts = {name, *steps(configs[name])}
    found = need(repository, {part: config for part, config in configs.items() if part in parts})
    least, usual = found.least_bytes - SERVER_BYTES, found.usual_bytes - SERVER_BYTES
    if least > memory.free_bytes:
        raise LoadFailed(
            f"{name} takes {size(least)} of memory once it is loaded and up to {size(usual)} under load, and "
            f"{size(memory.free_bytes)} are free. Unload another model first."
        )


def footprint(
    name: str,
    config: ModelConfig,
    folder: Path | None,
    recorded: MemoryRecord | None = None,
    *,
    versions: int = 0,
    gpus: int = 0,
) -> Footprint:
    """The footprint of one model: recorded on a CPU, or else from PROCESS_MEMORY and the size of its files.

    `folder` is None for a model whose files cannot be read, of which `versions` are loaded.
    """
    versions = versions or _versions(folder, config)
    count, runtime, weights = processes(config, versions, gpus=gpus), runtime_of(config), _largest_file(folder)
    known = PROCESS_MEMORY[runtime]
    if on_gpus := instances_on_gpus(config, gpus):
        # Libraries are in host memory; on the GPU are weights and activations, which take as much as on a CPU.
        own = weights + known.peak_bytes - known.loaded_bytes
        if recorded is not None:
            own = max(weights, recorded.peak_bytes - PROCESS_MEMORY[recorded.runtime].loaded_bytes)
        on_one = max(on_gpus.values()) * versions * own
        return Footprint(name, runtime, count, known.loaded_bytes, known.peak_bytes, gpu_bytes=on_one)
    lone = weights + LONE_BYTES if has_threads(folder) else 0
    if recorded is not None:
        loaded, peak = recorded.loaded_bytes + lone, recorded.peak_bytes + lone
        return Footprint(name, recorded.runtime, count, loaded, peak, measured=True)
    return Footprint(name, runtime, count, known.loaded_bytes + weights + lone, known.peak_bytes + weights + lone)


def _largest_file(folder: Path | None) -> int:
    """Bytes of the largest file of a version, its weights."""
    files = (path for path in _glob(folder, "[0-9]*/*") if path.is_file() and path.suffix != ".py")
    return max((path.stat().st_size for path in files), default=0)


def _glob(folder: Path | None, pattern: str) -> list[Path]:
    """The paths in a model's folder, which may be absent."""
    return [] if folder is None else list(folder.glob(pattern))


def has_threads(folder: Path | None) -> bool:
    """Whether a lone image has several threads, and so a second session with another copy of the weights.

    The records in the folders of the versions tell.
    """
    found = []
    for path in _glob(folder, "[0-9]*/threads.json"):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            found.append(int(json.loads(path.read_bytes())["threads"]))
    return max(found, default=1) > 1


def processes(config: ModelConfig, versions: int = 1, *, gpus: int = 0) -> int:
    """Processes of a model that is not an ensemble: one for each instance of each version that is loaded."""
    on_gpus = sum(instances_on_gpus(config, gpus).values())
    kinds = {
        ModelInstanceGroup.KIND_CPU,
        ModelInstanceGroup.KIND_MODEL,
        *([] if gpus else [ModelInstanceGroup.KIND_AUTO]),
    }
    groups = config.instance_group or [ModelInstanceGroup()]
    instances: int = on_gpus + sum(max(1, group.count) for group in groups if group.kind in kinds)
    return max(1, instances) * versions


def _versions(folder: Path | None, config: ModelConfig) -> int:
    """How many versions of a model Triton loads."""
    there = sum(path.is_dir() and path.name.isdigit() for path in _glob(folder, "*")) or 1
    policy = config.version_policy
    if policy.HasField("all"):
        return max(1, there)
    if policy.HasField("specific"):
        return max(1, len(policy.specific.versions))
    latest: int = policy.latest.num_versions
    return max(1, min(there, latest or 1))


def runtime_of(config: ModelConfig) -> NetworkRuntime:
    """The runtime of a model."""
    kind = config.backend or config.platform
    if kind in TORCH:
        return NetworkRuntime.TORCH_CUDA if torch_has_cuda() else NetworkRuntime.TORCH_CPU
    if kind in ONNX:
        accelerators = config.optimization.execution_accelerators.cpu_execution_accelerator
        return NetworkRuntime.OPENVINO if any(each.name == "openvino" for each in accelerators) else NetworkRuntime.ONNX
    if config.HasField("sequence_batching"):
        return NetworkRuntime.STATEFUL
    if "resize_library" in parameters(config):
        on_torch = parameters(config)["resize_library"] == "torch" or instances_on_gpus(config, gpus=1)
        return (
            (NetworkRuntime.TORCH_CUDA if torch_has_cuda() else NetworkRuntime.TORCH_CPU)
            if on_torch
            else NetworkRuntime.PREPROCESSOR
        )
    return NetworkRuntime.PYTHON


def torch_has_cuda() -> bool:
    """Whether the installed torch is a CUDA build, whose libraries take memory even without a GPU."""
    spec = importlib.util.find_spec("torch")
    folders = (spec.submodule_search_locations if spec else None) or []
    return any((Path(folder) / "lib" / "libtorch_cuda.so").exists() for folder in folders)


def size(nbytes: float) -> str:
    """Bytes in MiB or GiB."""
    return f"{nbytes / GIB:.1f} GiB" if nbytes >= GIB else f"{nbytes / MIB:.0f} MiB"
