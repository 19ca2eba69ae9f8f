"""How to start on this machine: counts of processes and limits that fit its cores, GPUs and memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from google.protobuf import text_format

from gateway.environment import load_settings
from gateway.errors import UserError
from gateway.findings import Finding, Level, fail, ok, warn
from gateway.limits.buffers import LEAST, fitted, needed
from gateway.machine.capacity import Costs, Plan, fitting_plan
from gateway.machine.cores import usable_cores
from gateway.machine.gpus import find_gpus
from gateway.machine.memory import MACHINE, Memory, memory_limit, usable_memory
from gateway.settings import Settings
from gateway.triton.configs import ModelConfig, read_model_configs, steps
from gateway.triton.contract import ALL, pinned_versions
from gateway.triton.footprint import Need, need, size
from gateway_local.bytecode import compile_models
from gateway_local.sizing import completed_texts, write

Say = Callable[[str], None]
NEAR = 0.9
"""Share of the free memory above which a need is near the limit."""
MOST_LINES = 12
"""Models that a comparison with the memory shows, the largest first."""
ADVICE = (
    "fewer processes (no `count` in config.pbtxt, or model add --instances 1), ONNX Runtime in place of PyTorch, "
    "torch's CPU build on a machine without a GPU, or fewer models (gateway model remove NAME)"
)


class MemoryShort(UserError):
    """The models need more memory than there is; the message names both amounts and what to do."""


@dataclass(frozen=True, slots=True)
class StartPlan:
    """How to start on this machine."""

    settings: Settings
    sizes: Plan
    """The plan for counts that configurations lack."""
    changed: Mapping[str, int] = field(default_factory=dict)
    """Settings that were not set and have other values than their defaults."""


def plan_start(
    settings: Settings,
    repository: Path,
    say: Say,
    *,
    gpus: int,
    with_gateway: bool = True,
    memory: Callable[[], Memory | None] = usable_memory,
) -> StartPlan:
    """Choose counts and settings that are not set, and report them; raises MemoryShort if models do not fit.

    Where memory does not suffice for processes on all cores, there are fewer of each stage. Written counts stay.
    """
    found = memory()
    sizes = machine_plan(settings, repository, gpus=gpus, free_bytes=found.free_bytes if found else None)
    say(sizes.explained()[0])
    if found is None:
        chosen = settings.unset(sizes.settings()) if with_gateway else {}
        return StartPlan(settings.model_copy(update=chosen), sizes, chosen)
    wanted = _need(repository, sizes, settings)
    chosen, lowered = {}, {}
    if with_gateway:
        chosen = settings.unset(sizes.settings())
        lowered = fitted(settings.model_copy(update=chosen), found.limit_bytes - wanted.usual_bytes, with_triton=True)
    settings = settings.model_copy(update={**chosen, **lowered})
    if lowered:
        values = ", ".join(f"{name}={size(value)}" for name, value in lowered.items())
        say(f"lower than their defaults, to fit {size(found.limit_bytes)} of memory ({found.where}): {values}")
    beside = settings.triton_cache_bytes + (needed(settings) if with_gateway else 0)
    finding = fit(wanted, found, beside_bytes=beside)
    lines = [*finding.text.splitlines(), f"To need less: {finding.advice}"]
    if finding.level is Level.FAIL:
        raise MemoryShort(*lines)
    if finding.level is Level.WARN:
        say(f"warning: memory may run out: {lines[0]}")
        for line in lines[1:]:
            say(line)
    return StartPlan(settings, sizes, {**chosen, **lowered})


def machine_plan(
    settings: Settings, repository: Path, *, gpus: int | None = None, free_bytes: int | None = None
) -> Plan:
    """The plan for this machine, its GPUs and a repository's models; with `free_bytes`, one that fits into them."""

    def fits(sizes: Plan) -> bool:
        beside = 0
        if not settings.triton_alone:
            beside = _smallest_need(settings.model_copy(update=settings.unset(sizes.settings())))
        return free_bytes is None or _need(repository, sizes, settings).usual_bytes + beside <= free_bytes

    found = find_gpus().usable if gpus is None else gpus
    cores = settings.cores or usable_cores()
    return fitting_plan(cores, found, Costs.read(settings.costs), fits, triton_alone=settings.triton_alone)


def size_models(repository: Path) -> None:
    """Complete the configurations of added or changed models, for a Triton that runs with this repository.

    Also compiles their Python.

    Raises SettingsError, or OSError where the repository is read-only.
    """
    write(repository, machine_plan(load_settings(), repository, free_bytes=memory_limit()))
    compile_models(repository)


def sized_configs(repository: Path, sizes: Plan) -> dict[str, ModelConfig]:
    """The configurations that Triton reads if it is started with these sizes, by name."""
    configs = read_model_configs(repository)
    for name, text in completed_texts(repository, sizes).items():
        if name in configs:
            configs[name] = text_format.Parse(text, ModelConfig())
    return configs


def models_to_start(settings: Settings, configs: Mapping[str, ModelConfig], repository: Path) -> tuple[str, ...]:
    """The models that Triton loads when it starts: all, or with models on demand the ones that always stay loaded.

    These are the default model and `load_models`, with all their versions. They exclude the stateful models of streams:
    the first stream loads them.
    """
    if settings.models_memory_bytes:
        named = (settings.model, *settings.load_models)
        versions = (version for name in named for version in pinned_versions(name, configs))
        return tuple(dict.fromkeys((*named, *versions)))
    folders = {path.name for path in repository.iterdir() if path.is_dir()}
    stateful = {name for name, config in configs.items() if config.HasField("sequence_batching")}
    # With a folder whose configuration cannot be read, Triton is to say so.
    return tuple(sorted(folders - stateful)) if stateful and folders == {*configs} else (ALL,)


def _need(repository: Path, sizes: Plan, settings: Settings) -> Need:
    configs = sized_configs(repository, sizes)
    if not settings.models_memory_bytes:
        return need(repository, configs, gpus=sizes.gpus)
    started = models_to_start(settings, configs, repository)
    parts = {*started, *(step for name in started if name in configs for step in steps(configs[name]))}
    found = need(repository, {name: config for name, config in configs.items() if name in parts}, gpus=sizes.gpus)
    return replace(found, budget_bytes=settings.models_memory_bytes)


def _smallest_need(settings: Settings) -> int:
    """Memory of the gateway with the smallest buffers."""
    held: dict[str, int] = {name: min(value, getattr(settings, name)) for name, value in LEAST.items()}
    return needed(settings.model_copy(update=held)) + held["triton_cache_bytes"]


def fit(wanted: Need, memory: Memory, *, beside_bytes: int) -> Finding:
    """Compare the need of models with the free memory; `beside_bytes` is for the gateway and the response cache.

    It fails if the models cannot even be loaded, and warns if memory may not suffice under load.
    """
    of = "" if memory.where == MACHINE else f" of the {size(memory.limit_bytes)} of {memory.where}"
    lines = [
        f"{size(memory.free_bytes)}{of} are free; the models take {size(wanted.least_bytes)} once they are loaded, and "
        f"with the gateway up to {size(wanted.usual_bytes + beside_bytes)} under load"
    ]
    largest = sorted(wanted.footprints, key=lambda each: -each.processes * each.usual_bytes)[:MOST_LINES]
    lines += [
        f"  {each.model:<32} {each.processes:>2} × {size(each.least_bytes):>8} loaded, {size(each.usual_bytes):>8} "
        f"under load  {each.runtime.value}, {'measured' if each.measured else 'estimated'}"
        for each in largest
    ]
    text = "\n".join(lines)
    if wanted.least_bytes > memory.free_bytes:
        return fail("memory", text, ADVICE)
    if wanted.usual_bytes + beside_bytes > NEAR * memory.free_bytes:
        return warn("memory", text, ADVICE)
    return ok("memory", text)
