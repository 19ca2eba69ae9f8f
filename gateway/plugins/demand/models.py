"""The models of some Triton servers: names, steps, memory and use, from Triton's index and the repository."""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.service_pb2 import RepositoryIndexResponse

from gateway.errors import DeadlineExceeded, GatewayError, TritonUnreachable
from gateway.triton.codecs import breaches
from gateway.triton.configs import ModelConfig, parameters, read_model_configs, steps
from gateway.triton.contract import CLASSIFIER, MODEL_PARAMETER, PREPROCESSOR, pinned, pinned_versions
from gateway.triton.footprint import Footprint, footprint, need, records
from gateway.triton.health.state import LOADING, READY, UNLOADING
from gateway.triton.replica import Replica

HOST, GPU = "host", "GPU"
"""The keys of `Amounts`: host memory, and memory of each GPU."""

Amounts = Mapping[str, int]
"""Bytes of host memory and of each GPU."""
SIZED = "configs/sized.pbtxt"
"""The configuration that Triton reads instead of config.pbtxt where it exists."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The memory limits of a Triton's models; 0 bytes of a GPU mean no limit."""

    host_bytes: int
    gpu_bytes: int = 0

    def most(self, place: str) -> float:
        """The limit of host memory or of a GPU."""
        return self.host_bytes if place == HOST else self.gpu_bytes or math.inf

    def exceeded(self, amounts: Amounts) -> set[str]:
        """The resources whose amounts exceed the budget."""
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

    None if unloading all that may be unloaded does not suffice. A model stays that frees nothing where memory is short.
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
    """The configuration of a model before any Triton server has loaded it."""

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
            footprint(part, config, None, known.get(part), versions=max(1, loaded.count(part)), gpus=self._gpus)
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


@dataclass(slots=True)
class Usage:
    """How this gateway uses a model."""

    used_at: float = -math.inf
    loaded_at: float = -math.inf
    """When this process loaded it; time.monotonic()."""
    in_flight: int = 0
    """Its images in calls."""


class Models:
    """The models of the Triton servers. A model is one that clients name, with all its versions and steps.

    `fixed` models always stay loaded.
    """

    def __init__(self, descriptions: ModelDescriptions, fixed: Collection[str]) -> None:
        self.fixed = frozenset(fixed)
        self.loading: set[tuple[str, str]] = set()
        """The addresses of Triton servers, and the models that this process loads there now."""
        self.listed: set[str] = set()
        """All names in the Triton servers' repository."""
        self._descriptions = descriptions
        self._repository: Mapping[str, Described] | None = None
        """All models for clients, if the repository can be read here."""
        self._described: dict[str, Described] = {}
        self._usage: dict[str, Usage] = defaultdict(Usage)

    async def read(self, replica: Replica) -> RepositoryIndexResponse:
        """Read which models a Triton and its repository have; raises TritonUnreachable also if the Triton hangs."""
        try:
            index = await replica.endpoint.index()
        except DeadlineExceeded as exc:
            raise TritonUnreachable from exc
        names = {model.name for model in index.models}
        if names != self.listed:
            self.listed = names
            self._repository = await self._descriptions.of_repository()
        return index

    async def describe(self, replica: Replica, unit: str, index: RepositoryIndexResponse) -> None:
        """Find the steps and the memory of a model; of a Triton elsewhere, they remain unknown until it is loaded."""
        self._repository = await self._descriptions.of_repository()
        found = (self._repository or {}).get(unit)
        if found is None and unit in in_state(index, READY):
            found = await self._descriptions.of_triton(replica, unit, index)
        if found is not None:
            self._described[unit] = found

    def unit(self, name: str) -> str:
        """The model to which a name belongs: for the ensemble of a version, the model without the version."""
        base, _, version = name.rpartition(".v")
        return base if version.isdecimal() and base in self.listed and pinned(base, version) == name else name

    def versions(self, unit: str) -> set[str]:
        """A model and the ensembles of its versions."""
        return {unit, *pinned_versions(unit, self.listed)}

    def is_for_clients(self, name: str) -> bool:
        """Whether a listed name is a model that clients may request, as far as that is known before it is loaded.

        If the repository cannot be read here, the steps of loaded models are known, and the names that `gateway model
        add` gives to steps.
        """
        if self._repository is not None:
            return name in self._repository
        base, _, role = name.rpartition("_")
        is_step = role in {PREPROCESSOR, CLASSIFIER} and base in self.listed
        known = {step for each in self._described.values() for step in each.steps}
        return self.unit(name) == name and not is_step and name not in known

    def steps(self, unit: str) -> tuple[str, ...]:
        """The steps of a model; until they are known, the default names of `gateway model add`."""
        found = self._described.get(unit)
        return found.steps if found is not None else tuple(f"{unit}_{role}" for role in (PREPROCESSOR, CLASSIFIER))

    def own_steps(self, unit: str) -> set[str]:
        """The steps of a model that no other known model has."""
        known = {**(self._repository or {}), **self._described}
        return set(self.steps(unit)).difference(*(each.steps for name, each in known.items() if name != unit))

    def amounts(self, unit: str) -> Amounts:
        """The memory of a model; nothing while it is unknown."""
        return self._described[unit].amounts if unit in self._described else {}

    async def loaded(self, replica: Replica, index: RepositoryIndexResponse, kept_seconds: float) -> list[LoadedModel]:
        """The models that a Triton has loaded or loads."""
        await replica.checker.discover(index)
        there = in_state(index, READY, LOADING, UNLOADING)
        units = {self.unit(name) for name in replica.health.models if name in there}
        units |= {unit for address, unit in self.loading if address == replica.address}
        for unit in units - self._described.keys():
            await self.describe(replica, unit, index)
        kept_from, loading = time.monotonic() - kept_seconds, {unit for _, unit in self.loading}
        found = []
        for unit in sorted(units):
            usage = self._usage.get(unit, Usage())
            stays = unit in self.fixed or unit in loading or usage.loaded_at > kept_from
            used_at = max(usage.used_at, usage.loaded_at)
            found.append(LoadedModel(unit, self.amounts(unit), stays, usage.in_flight > 0, used_at))
        return found

    def mark_loaded(self, unit: str) -> None:
        """Record that this process has loaded a model."""
        self._usage[unit].loaded_at = time.monotonic()

    def mark_used(self, unit: str) -> None:
        """Record a use of a model that is loaded."""
        self._usage[unit].used_at = time.monotonic()

    def in_flight(self, unit: str) -> int:
        """The images of a model in calls."""
        return self._usage[unit].in_flight if unit in self._usage else 0

    @contextmanager
    def call(self, unit: str, images: int) -> Iterator[None]:
        """A call with this number of images."""
        # A name without a usage was never loaded, and a client may have made it up.
        usage = self._usage.get(unit) or Usage()
        usage.in_flight += images
        try:
            yield
        finally:
            usage.in_flight -= images
            usage.used_at = time.monotonic()


def in_state(index: RepositoryIndexResponse, *states: str) -> set[str]:
    """The models of which a version has one of these states."""
    return {model.name for model in index.models if model.state in states}
