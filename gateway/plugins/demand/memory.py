"""The memory of models, the budget of a Triton, and the choice of what to unload for another model."""

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.service_pb2 import RepositoryIndexResponse

from gateway.errors import GatewayError
from gateway.triton.contract import MODEL_PARAMETER, ModelConfig, breaches, parameters, read_model_configs, steps
from gateway.triton.footprint import Files, Footprint, footprint, need, records
from gateway.triton.health.state import READY
from gateway.triton.pool import Replica

HOST, GPU = "host", "GPU"
"""The keys of `Amounts`: host memory, and memory of each GPU."""

Amounts = Mapping[str, int]
"""Bytes of host memory and of each GPU."""
SIZED = "configs/sized.pbtxt"
"""The configuration that Triton reads instead of config.pbtxt where it exists."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The most memory of a Triton's models; 0 bytes of a GPU are no limit."""

    host_bytes: int
    gpu_bytes: int = 0

    def most(self, place: str) -> float:
        """The limit of host memory or of a GPU."""
        return self.host_bytes if place == HOST else self.gpu_bytes or math.inf

    def exceeded(self, amounts: Amounts) -> set[str]:
        """Where some amounts are above the budget."""
        return {place for place, nbytes in amounts.items() if nbytes > self.most(place)}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that a Triton has loaded, with all its versions and the steps that it alone needs."""

    name: str
    amounts: Amounts
    stays: bool
    """Whether it is not unloaded now: it always stays, is loading, or was loaded a moment ago."""
    busy: bool
    """Whether it has images in flight; they are finished before it is unloaded."""
    used_at: float
    """When it last answered here, or was loaded by this gateway; time.monotonic()."""


def total(parts: Iterable[Amounts]) -> dict[str, int]:
    """The sum of some amounts."""
    found: dict[str, int] = {}
    for part in parts:
        for place, nbytes in part.items():
            found[place] = found.get(place, 0) + nbytes
    return found


def to_unload(loaded: Sequence[LoadedModel], needed: Amounts, budget: Budget) -> list[str] | None:
    """The models to unload so that `needed` fits: idle ones before busy ones, the least recently used first.

    None if those that may be unloaded do not suffice. A model that frees nothing where memory is short stays.
    """
    kept = total([needed, *(model.amounts for model in loaded)])
    chosen = []
    for model in sorted(loaded, key=lambda model: (model.busy, model.used_at)):
        if not model.stays and any(model.amounts.get(place, 0) for place in budget.exceeded(kept)):
            chosen.append(model.name)
            kept = {place: nbytes - model.amounts.get(place, 0) for place, nbytes in kept.items()}
    return None if budget.exceeded(kept) else chosen


@dataclass(frozen=True, slots=True)
class Described:
    """What the configuration of a model says, before any Triton has loaded it."""

    steps: tuple[str, ...]
    amounts: Amounts


class ModelDescriptions:
    """The steps and the memory of models: from the repository, if it can be read here, or from a Triton's own copy.

    A Triton elsewhere gives the configurations of models that it has loaded, not of others. `gpus` is the number of
    its GPUs.
    """

    def __init__(self, repository: Path | None, *, gpus: int = 0) -> None:
        self.repository = repository
        self._gpus = gpus

    async def of_repository(self) -> Mapping[str, Described] | None:
        """All models for clients; None if the repository cannot be read here."""
        return None if self.repository is None else await asyncio.to_thread(self._read, self.repository)

    async def of_triton(self, replica: Replica, name: str, index: RepositoryIndexResponse) -> Described | None:
        """A model that a Triton has loaded; None if it does not give its configurations."""
        try:
            ensemble = await replica.endpoint.config(name)
            parts = steps(ensemble)
            configs = {part: await replica.endpoint.config(part) for part in dict.fromkeys(parts)}
        except GatewayError:
            return None
        known = records({name: ensemble})
        loaded = [model.name for model in index.models if model.state == READY]
        found = (
            footprint(part, config, Files(max(1, loaded.count(part))), known.get(part), gpus=self._gpus)
            for part, config in configs.items()
        )
        return Described(parts, _amounts(found))

    def _read(self, repository: Path) -> dict[str, Described]:
        configs = read_model_configs(repository, SIZED)
        footprints = {each.model: each for each in need(repository, configs, gpus=self._gpus).footprints}
        found = {}
        for name in configs:
            if _is_for_clients(name, configs):
                parts = steps(configs[name])
                found[name] = Described(parts, _amounts(footprints[each] for each in {*parts} & footprints.keys()))
        return found


def _is_for_clients(name: str, configs: Mapping[str, ModelConfig]) -> bool:
    """Whether a model keeps the contract and is not the ensemble of one version."""
    config = configs[name]
    return not breaches(config) and parameters(config).get(MODEL_PARAMETER, name) == name


def _amounts(footprints: Iterable[Footprint]) -> Amounts:
    found = tuple(footprints)
    host = sum(each.processes * each.usual_bytes for each in found)
    return {HOST: host, GPU: sum(each.gpu_bytes for each in found)}
