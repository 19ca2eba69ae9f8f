"""Memory planning of `gateway up`: compare the need with the available memory, and lower defaults to fit."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf import text_format

from gateway.buffers import LEAST, fitted, needed
from gateway.cores import usable_cores
from gateway.files import whole_file
from gateway.memory import MACHINE, Memory, memory_limit, usable_memory
from gateway.settings import MemoryCheck, Settings, variable
from gateway.triton.contract import CLASSIFIER, PREPROCESSOR
from gateway.triton.footprint import Need, runtime_of, size
from gateway.triton.model_config import ModelConfig, read_model_configs
from gateway_local.memory_fit import check, count_for
from gateway_local.memory_record import RECORD, measured_need, recorded
from gateway_local.runtime import default_cache_dir

LEAN = "lean"
SHIPPED_COUNT = 2
"""Processes of each step of the default model in the shipped config.pbtxt."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How to start on this machine."""

    settings: Settings
    lowered: Mapping[str, int] = field(default_factory=dict)
    """Settings that were lowered below their defaults."""
    arguments: tuple[str, ...] = ()
    """Triton's additional arguments."""


def plan_memory(
    settings: Settings,
    repository: Path,
    say: Say,
    *,
    gpus: int,
    with_gateway: bool = True,
    memory: Callable[[], Memory | None] = usable_memory,
) -> MemoryPlan:
    """Warn if memory may run out, lower settings left at their defaults, and raise MemoryShort if models do not fit.

    If two processes for each step of the default model do not fit, one of each runs: Triton then reads
    configs/lean.pbtxt, which is written beside config.pbtxt. Other models run as their config.pbtxt specifies.
    """
    found = memory()
    if found is None or settings.memory_check is MemoryCheck.OFF:
        return MemoryPlan(settings)
    configs = read_model_configs(repository)
    arguments: tuple[str, ...] = ()
    wanted = _need(repository, configs, gpus)
    lean = {name: _lean(configs[name]) for name in (CLASSIFIER, PREPROCESSOR) if _is_shipped(configs.get(name))}
    if (
        CLASSIFIER in lean
        and not gpus
        and wanted.usual_bytes + _smallest_need(settings) > found.free_bytes
        and all(_write(config, repository / name / "configs" / f"{LEAN}.pbtxt") for name, config in lean.items())
    ):
        arguments = (f"--model-config-name={LEAN}",)
        wanted = _need(repository, {**configs, **lean}, gpus)
        say(
            f"{' and '.join(lean)} run in one process each instead of {SHIPPED_COUNT}, since "
            f"{size(found.free_bytes)} of memory are free; "
            f"{variable('memory_check')}={MemoryCheck.OFF.value} keeps {SHIPPED_COUNT}"
        )
    lowered = fitted(settings, found.limit_bytes - wanted.usual_bytes, with_triton=True) if with_gateway else {}
    settings = settings.model_copy(update=lowered)
    if lowered:
        values = ", ".join(f"{variable(name)}={size(value)}" for name, value in lowered.items())
        say(f"lower than their defaults, to fit {size(found.limit_bytes)} of memory ({found.where}): {values}")
    beside = settings.triton_cache_bytes + (needed(settings) if with_gateway else 0)
    if warning := check(wanted, found, beside_bytes=beside, how=settings.memory_check):
        for line in f"warning: memory may run out: {warning}".splitlines():
            say(line)
    return MemoryPlan(settings, lowered, arguments)


def _need(repository: Path, configs: Mapping[str, ModelConfig], gpus: int) -> Need:
    return measured_need(repository, configs, recorded(default_cache_dir() / RECORD), gpus=gpus)


def _smallest_need(settings: Settings) -> int:
    """Memory of the gateway with the smallest buffers."""
    held: dict[str, int] = {name: min(value, getattr(settings, name)) for name, value in LEAST.items()}
    return needed(settings.model_copy(update=held)) + held["triton_cache_bytes"]


def _is_shipped(config: ModelConfig | None) -> bool:
    counts: list[int] = [group.count for group in config.instance_group] if config is not None else []
    return counts == [SHIPPED_COUNT]


def _lean(config: ModelConfig) -> ModelConfig:
    lean = ModelConfig()
    lean.CopyFrom(config)
    for group in lean.instance_group:
        group.count = 1
    return lean


def _write(config: ModelConfig, path: Path) -> bool:
    """Write a configuration; False where the repository is read-only."""
    try:
        path.parent.mkdir(exist_ok=True)
        with whole_file(path) as draft:
            draft.write_text(f"# Written by `gateway up` from ../config.pbtxt.\n{text_format.MessageToString(config)}")
    except OSError:
        return False
    return True


def count_for_new_model(repository: Path, written_as: str, *, gpus: int) -> int:
    """How many processes each step of a newly added model gets if the user gives no number.

    `written_as` is the backend or the platform of its network.
    """
    if gpus:
        return SHIPPED_COUNT
    wanted = _need(repository, read_model_configs(repository), gpus) if repository.is_dir() else Need((), 0, 0)
    return count_for(runtime_of(ModelConfig(backend=written_as)), wanted, memory_limit(), usable_cores())


def warn_of_memory(repository: Path, settings: Settings, say: Say, *, gpus: int) -> None:
    """Warn if all models of a repository and the gateway need more memory than this machine has."""
    limit = memory_limit()
    if limit is None:
        return
    memory = Memory(limit, limit, MACHINE)
    wanted = _need(repository, read_model_configs(repository), gpus)
    beside = needed(settings) + settings.triton_cache_bytes
    how = MemoryCheck.OFF if settings.memory_check is MemoryCheck.OFF else MemoryCheck.WARN
    if warning := check(wanted, memory, beside_bytes=beside, how=how):
        for line in f"warning: on a machine with the memory of this one it may run out: {warning}".splitlines():
            say(line)
