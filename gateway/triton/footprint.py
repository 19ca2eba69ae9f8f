"""The memory that the processes of a model repository take on a machine: measured where they have run, else estimated.

Triton runs each instance of each version of a model in a process of its own. A process has memory of its own, and maps
the libraries of its runtime, which all processes of that runtime share.
"""

import contextlib
import hashlib
import importlib.util
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from gateway.errors import LoadFailed, UserError
from gateway.files import whole_file
from gateway.gpus import gpu_count
from gateway.memory import MACHINE, Memory
from gateway.settings import MemoryCheck, variable
from gateway.triton.cuda_pool import instances_on_gpus
from gateway.triton.model_config import ModelConfig, ModelInstanceGroup, parameters, read_model_configs, steps

GIB, MIB, KIB = 2**30, 2**20, 2**10
NEAR = 0.9
"""Share of the free memory above which a need is near the limit."""
SERVER_BYTES = 64 * MIB
"""Memory of tritonserver itself, without its response cache."""
USUAL_COUNT = 2
"""Processes of each step of a model, where there is memory for them."""
SHARE = 0.5
"""Share of the machine's memory that models may need in all and still have two processes each."""
FORMAT = 1
RECORD = "memory.json"
"""The file of `record` in the cache folder."""
OVERRIDE = f"{variable('memory_check')}={MemoryCheck.WARN.value}"


class MemoryShort(UserError):
    """The models need more memory than there is; the message says how much of both, and what to do."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Memory in bytes of one process of a runtime, without the weights of its model."""

    least_bytes: int
    """Of its own, as soon as it has loaded a small model."""
    usual_bytes: int
    """Of its own, under load."""
    shared_bytes: int
    """Libraries, counted once for all processes of the runtime."""


class Runtime(StrEnum):
    """What runs a model."""

    TORCH_CUDA = "PyTorch (CUDA build)"
    TORCH_CPU = "PyTorch (CPU build)"
    ONNX = "ONNX Runtime"
    PYTHON = "Python"
    """A function, whose imports are unknown."""
    PREPROCESSOR = "preprocessor"
    STATEFUL = "stateful model"


COSTS = {
    Runtime.TORCH_CUDA: Cost(290 * MIB, 500 * MIB, 330 * MIB),
    Runtime.TORCH_CPU: Cost(150 * MIB, 370 * MIB, 140 * MIB),
    Runtime.ONNX: Cost(30 * MIB, 170 * MIB, 30 * MIB),
    Runtime.PYTHON: Cost(15 * MIB, 500 * MIB, 20 * MIB),
    Runtime.PREPROCESSOR: Cost(25 * MIB, 64 * MIB, 20 * MIB),
    Runtime.STATEFUL: Cost(14 * MIB, 24 * MIB, 10 * MIB),
}
"""Measured with the default model on two cores: `gateway up`, some load, and after its end `gateway doctor`."""
STUB = "triton_python_backend_stub"
TORCH, ONNX = {"pytorch", "pytorch_libtorch"}, {"onnxruntime", "onnxruntime_onnx"}


@dataclass(frozen=True, slots=True)
class Footprint:
    """The processes of one model, and the memory that each of them has for itself."""

    model: str
    runtime: Runtime
    processes: int
    least_bytes: int
    """Of each, once it is loaded."""
    usual_bytes: int
    """Of each, under load."""
    measured: bool = False


@dataclass(frozen=True, slots=True)
class Need:
    """What all models of a repository take together, with tritonserver, and what each part of it is."""

    footprints: tuple[Footprint, ...]
    least_bytes: int
    usual_bytes: int


def need(
    repository: Path, configs: Mapping[str, ModelConfig], known: Mapping[str, Any] | None = None, *, gpus: int = 0
) -> Need:
    """What the models of a repository need; `known` is what `recorded` returned, {} to estimate everything."""
    found = tuple(
        footprint(repository / name, config, known or {}, gpus=gpus)
        for name, config in configs.items()
        if not config.HasField("ensemble_scheduling")
    )
    shared = sum(COSTS[runtime].shared_bytes for runtime in {each.runtime for each in found})
    return Need(
        found,
        # Without the libraries, whose pages the kernel can drop and read again.
        sum(each.processes * each.least_bytes for each in found) + SERVER_BYTES,
        sum(each.processes * each.usual_bytes for each in found) + shared + SERVER_BYTES,
    )


def count_for(runtime: Runtime, wanted: Need, limit_bytes: int | None, cores: float) -> int:
    """How many processes each step of a further model gets where no number is given: two, or one on a small machine.

    `wanted` is what the models need that are there, `limit_bytes` the memory of the machine or the container.
    """
    if cores < USUAL_COUNT:
        return 1
    more = USUAL_COUNT * (COSTS[runtime].usual_bytes + COSTS[Runtime.PREPROCESSOR].usual_bytes)
    return 1 if limit_bytes is not None and wanted.usual_bytes + more > SHARE * limit_bytes else USUAL_COUNT


def check_load(name: str, repository: Path, how: MemoryCheck, memory: Memory | None) -> str | None:
    """A warning where a model may need more memory than is free, else None; raises LoadFailed where it certainly does.

    A model that is loaded already counts as well: Triton ends its processes after the new ones have started.
    """
    configs = read_model_configs(repository)
    if how is MemoryCheck.OFF or memory is None or name not in configs:
        return None
    parts = {name, *steps(configs[name])}
    found = need(repository, {part: config for part, config in configs.items() if part in parts})
    least, usual = found.least_bytes - SERVER_BYTES, found.usual_bytes - SERVER_BYTES
    if usual <= NEAR * memory.free_bytes:
        return None
    text = (
        f"{name} takes {size(least)} of memory once it is loaded and up to {size(usual)} under load, and "
        f"{size(memory.free_bytes)} are free"
    )
    if least > memory.free_bytes and how is MemoryCheck.REFUSE:
        raise LoadFailed(f"{text}. Unload another model first; to load it all the same, start with {OVERRIDE}.")
    return text


def footprint(folder: Path, config: ModelConfig, known: Mapping[str, Any], *, gpus: int = 0) -> Footprint:
    """The footprint of one model, whose folder may not be complete yet."""
    runtime = runtime_of(config)
    cost = COSTS[runtime]
    weights = max((path.stat().st_size for path in _files(folder) if path.suffix != ".py"), default=0)
    estimate = Footprint(
        folder.name,
        runtime,
        processes(folder, config, gpus=gpus),
        cost.least_bytes + (0 if gpus else weights),
        cost.usual_bytes + (0 if gpus else weights),
    )
    entry = known.get(str(folder.resolve()))
    if entry and entry["fingerprint"] == fingerprint(folder):
        return replace(estimate, least_bytes=entry["loaded_bytes"], usual_bytes=entry["peak_bytes"], measured=True)
    return estimate


def processes(folder: Path, config: ModelConfig, *, gpus: int = 0) -> int:
    """Processes of a model that is no ensemble: one for each instance of each version that is loaded."""
    on_gpus = sum(instances_on_gpus(config, gpus).values())
    kinds = {
        ModelInstanceGroup.KIND_CPU,
        ModelInstanceGroup.KIND_MODEL,
        *([] if gpus else [ModelInstanceGroup.KIND_AUTO]),
    }
    groups = config.instance_group or [ModelInstanceGroup()]
    instances: int = on_gpus + sum(max(1, group.count) for group in groups if group.kind in kinds)
    return max(1, instances) * _versions(folder, config)


def _versions(folder: Path, config: ModelConfig) -> int:
    there = sum(path.is_dir() and path.name.isdigit() for path in folder.iterdir()) if folder.is_dir() else 1
    policy = config.version_policy
    if policy.HasField("all"):
        return max(1, there)
    if policy.HasField("specific"):
        return max(1, len(policy.specific.versions))
    latest: int = policy.latest.num_versions
    return max(1, min(there, latest or 1))


def runtime_of(config: ModelConfig) -> Runtime:
    """What runs a model."""
    kind = config.backend or config.platform
    if kind in TORCH:
        return Runtime.TORCH_CUDA if torch_has_cuda() else Runtime.TORCH_CPU
    if kind in ONNX:
        return Runtime.ONNX
    if config.HasField("sequence_batching"):
        return Runtime.STATEFUL
    if "resize_library" in parameters(config):
        on_torch = parameters(config)["resize_library"] == "torch" or instances_on_gpus(config, gpus=1)
        return (Runtime.TORCH_CUDA if torch_has_cuda() else Runtime.TORCH_CPU) if on_torch else Runtime.PREPROCESSOR
    return Runtime.PYTHON


def torch_has_cuda() -> bool:
    """Whether the installed torch is a build with CUDA, whose libraries take memory on a machine without a GPU too."""
    spec = importlib.util.find_spec("torch")
    folders = (spec.submodule_search_locations if spec else None) or []
    return any((Path(folder) / "lib" / "libtorch_cuda.so").exists() for folder in folders)


def measure(server_pid: int) -> dict[str, tuple[int, int]]:
    """What each process of a Triton's models has for itself now, and has had at most, in bytes, by the model's folder.

    Of several processes of a model it is the largest.
    """
    found: dict[str, tuple[int, int]] = {}
    for pid in _children(server_pid):
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            now, peak = _own_bytes(pid)
        except (OSError, ValueError, LookupError):  # it has ended meanwhile
            continue
        if not arguments[0].endswith(STUB):
            continue
        # STUB REPOSITORY/MODEL/VERSION/FILE …
        model = str(Path(arguments[1]).parents[1])
        before = found.get(model, (0, 0))
        found[model] = (max(before[0], now), max(before[1], peak))
    return found


def _children(pid: int) -> Iterable[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            yield from map(int, task.read_text().split())
        except OSError:
            continue


def _own_bytes(pid: int) -> tuple[int, int]:
    """A process's memory without the files that it maps: now, and at its peak (proc_pid_status(5))."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    rss, peak, files = (int(lines[name].split()[0]) * KIB for name in ("VmRSS", "VmHWM", "RssFile"))
    return rss - files, max(rss, peak) - files


def fingerprint(folder: Path) -> str:
    """Changes with the files of a model's versions."""
    stats = [(str(path.relative_to(folder)), path.stat()) for path in _files(folder)]
    return hashlib.sha256(repr([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]).encode()).hexdigest()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("[0-9]*/*") if path.is_file())


def recorded(path: Path) -> dict[str, Any]:
    """What was measured on this machine, by the model's folder; {} where nothing was."""
    try:
        document = json.loads(path.read_bytes())
        return dict(document["models"]) if document["format"] == FORMAT else {}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def record(path: Path, measured: Mapping[str, tuple[int, int]]) -> None:
    """Keep what was measured, with the peaks of before for models whose files are the same; never raises OSError."""
    known = recorded(path)
    for model, (now, peak) in measured.items():
        mark = fingerprint(Path(model))
        before = known.get(model, {})
        same = before.get("fingerprint") == mark
        known[model] = {
            "fingerprint": mark,
            "loaded_bytes": min(now, before["loaded_bytes"]) if same else now,
            "peak_bytes": max(peak, before["peak_bytes"]) if same else peak,
        }
    known = {model: entry for model, entry in known.items() if Path(model).is_dir()}
    # Without it the next start estimates.
    with contextlib.suppress(OSError), whole_file(path) as draft:
        draft.write_text(json.dumps({"format": FORMAT, "models": known}, indent=2) + "\n")


class Fit(StrEnum):
    """How a need compares with what is free."""

    ENOUGH = "enough"
    NEAR = "near"
    """It may not suffice under load."""
    SHORT = "short"
    """The models cannot even be loaded."""


def fit(wanted: Need, memory: Memory, *, beside_bytes: int) -> Fit:
    """Compare what models and, beside them, the gateway and the response cache need with what is free."""
    if wanted.least_bytes > memory.free_bytes:
        return Fit.SHORT
    return Fit.NEAR if wanted.usual_bytes + beside_bytes > NEAR * memory.free_bytes else Fit.ENOUGH


def check(wanted: Need, memory: Memory | None, *, beside_bytes: int, how: MemoryCheck) -> str | None:
    """A warning where memory is or may become short, else None; raises MemoryShort where models cannot be loaded."""
    if how is MemoryCheck.OFF or memory is None:
        return None
    found = fit(wanted, memory, beside_bytes=beside_bytes)
    if found is Fit.ENOUGH:
        return None
    text = "\n".join([sentence(wanted, memory, beside_bytes=beside_bytes), *table(wanted), *advice(wanted)])
    if found is Fit.SHORT and how is MemoryCheck.REFUSE:
        raise MemoryShort(f"{text}\nTo go on all the same: {OVERRIDE}")
    return text


def sentence(wanted: Need, memory: Memory, *, beside_bytes: int) -> str:
    """What is needed and what is free, as one line."""
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
    """What makes models take less, the most effective first."""
    runtimes = {each.runtime for each in wanted.footprints}
    found = []
    if any(each.processes > 1 for each in wanted.footprints):
        found.append(
            "fewer processes: instance_group { count: 1 } in config.pbtxt, `gateway model add … --instances 1`"
        )
    if Runtime.TORCH_CUDA in runtimes and not gpu_count():
        found.append("torch's CPU build: pip install torch --index-url https://download.pytorch.org/whl/cpu")
    if runtimes & {Runtime.TORCH_CUDA, Runtime.TORCH_CPU}:
        found.append("ONNX Runtime instead of PyTorch: `gateway model add … --format onnx`")
    found.append("fewer models: `gateway model remove NAME`, or POST /models/NAME/unload")
    return ["To need less:", *(f"  {line}" for line in found)]


def size(nbytes: float) -> str:
    """Bytes in MiB or GiB."""
    return f"{nbytes / GIB:.1f} GiB" if nbytes >= GIB else f"{nbytes / MIB:.0f} MiB"
