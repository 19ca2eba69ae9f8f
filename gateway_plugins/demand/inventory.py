"""What the Tritons have: the models in their repositories, which of them are loaded, their use and their memory."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress

from tritonclient.grpc.service_pb2 import ModelStatisticsResponse, RepositoryIndexResponse

from gateway.errors import GatewayError
from gateway.inference.model_info import LoadTimes
from gateway.metrics import forget
from gateway.triton.contract import CLASSIFIER, PREPROCESSOR, pinned, pinned_versions
from gateway.triton.health.expected import LOADING, READY, UNLOADING
from gateway.triton.pool import TritonPool
from gateway.triton.replica import Replica
from gateway_plugins.demand import metrics
from gateway_plugins.demand.choice import LoadedModel
from gateway_plugins.demand.memory import HOST, Amounts, Described, ModelDescriptions
from gateway_plugins.demand.usage import TritonUsage, Usage


class Inventory:
    """The models of all Tritons in use, by what Triton and the repository say.

    A model here is what clients name, with all its versions and steps. `fixed` are those that always stay loaded.
    """

    def __init__(
        self,
        pool: TritonPool,
        descriptions: ModelDescriptions,
        *,
        fixed: Collection[str],
        kept_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.fixed = frozenset(fixed)
        self.clock = clock
        self.loading: dict[str, set[str]] = defaultdict(set)
        """By Triton: the models that this process loads there now."""
        self.listed: set[str] = set()
        """All names in the repositories of the Tritons in use."""
        self._pool = pool
        self._descriptions = descriptions
        self._kept_seconds = kept_seconds
        self._described: dict[str, Described] = {}
        self._repository: Mapping[str, Described] | None = None
        """All models for clients, if the repository can be read here."""
        self._repository_names: set[str] | None = None
        """What was listed when it was read."""
        self._lists: dict[str, set[str]] = {}
        """By Triton: all names in its repository."""
        self._ready: dict[str, set[str]] = {}
        """By Triton: the names that it has loaded."""
        self._triton_usage: dict[str, TritonUsage] = defaultdict(lambda: TritonUsage(clock))
        self._usage: dict[str, Usage] = {}
        self._reported: set[str] = set()
        """Tritons that have series of metrics."""

    async def refresh(self, replica: Replica) -> RepositoryIndexResponse:
        """Read which models a Triton has, and which of them are used."""
        index = await self.read_names(replica)
        await replica.checker.discover(index)
        statistics: ModelStatisticsResponse | None = None
        with suppress(GatewayError):
            statistics = await replica.endpoint.statistics("")
        loaded = self._units(replica) & in_state(index, READY)
        self._triton_usage[replica.address].update(loaded, statistics, self._usage, self.unit)
        if unknown := loaded - self._described.keys():
            await self.describe(replica, unknown, index)
        self._report(replica)
        return index

    async def read_names(self, replica: Replica) -> RepositoryIndexResponse:
        """Read which models a Triton's repository has."""
        index = await replica.endpoint.index()
        self._lists[replica.address] = {model.name for model in index.models}
        self._ready[replica.address] = in_state(index, READY)
        self.listed = set[str]().union(*(self._lists.get(each.address, ()) for each in self._pool.replicas))
        if self._repository_names != self.listed:
            self._repository = await self._descriptions.of_repository()
            self._repository_names = self.listed
        return index

    async def describe(self, replica: Replica, units: Iterable[str], index: RepositoryIndexResponse) -> None:
        """Find the steps and the memory of models; of a Triton elsewhere, those that are not loaded remain unknown.

        The repository is read again, since its files may have changed.
        """
        self._repository = await self._descriptions.of_repository()
        ready = in_state(index, READY)
        for unit in units:
            found = (self._repository or {}).get(unit)
            if found is None and unit in ready:
                found = await self._descriptions.of_triton(replica, unit, index)
            if found is not None:
                self._described[unit] = found

    def forget(self, unit: str) -> None:
        """Describe a model again when it is needed."""
        self._described.pop(unit, None)

    def unit(self, name: str) -> str:
        """The model to which a name belongs: that of a version's own ensemble is the model without the version."""
        base, _, version = name.rpartition(".v")
        return base if version.isdecimal() and base in self.listed and pinned(base, version) == name else name

    def is_for_clients(self, name: str) -> bool:
        """Whether a listed name is a model that clients may request, as far as that is known before it is loaded.

        If the repository cannot be read here, the steps of loaded models are known, and the names that `gateway model
        add` gives to steps.
        """
        if self._repository is not None:
            return name in self._repository
        steps = {step for each in self._described.values() for step in each.steps}
        return self.unit(name) == name and name not in steps and not _is_named_as_step(name, self.listed)

    def not_fixed(self, refused: Collection[str]) -> list[str]:
        """The models that requests load, loaded or not, without those that were refused.

        What is loaded but not probed is no model for clients, such as a stateful model.
        """
        ready = set[str]().union(*(self._ready.get(each.address, ()) for each in self._pool.replicas))
        names = self.listed - self.fixed - set(refused)
        return sorted(
            name for name in names if self.is_for_clients(name) and (self._pool.holders(name) or name not in ready)
        )

    def steps(self, unit: str) -> tuple[str, ...]:
        """The steps of a model; until they are known, those that `gateway model add` would have named."""
        found = self._described.get(unit) or (self._repository or {}).get(unit)
        return found.steps if found is not None else tuple(f"{unit}_{role}" for role in (PREPROCESSOR, CLASSIFIER))

    def own_steps(self, unit: str) -> set[str]:
        """The steps of a model that no other known model has."""
        known = {**(self._repository or {}), **self._described}
        return set(self.steps(unit)).difference(*(each.steps for name, each in known.items() if name != unit))

    def amounts(self, unit: str) -> Amounts:
        """The memory of a model; as much as the largest of the others while it is unknown."""
        found = self._described.get(unit)
        if found is not None:
            return found.amounts
        others = [each.amounts for each in self._described.values()]
        places = {place for amounts in others for place in amounts}
        return {place: max(amounts.get(place, 0) for amounts in others) for place in places}

    def held(self, replica: Replica) -> list[Amounts]:
        """The memory of each model that a Triton has loaded."""
        return [self.amounts(unit) for unit in self._units(replica)]

    def usage(self, unit: str) -> Usage:
        """How this gateway uses a model."""
        return self._usage.setdefault(unit, Usage())

    def known_usage(self, unit: str) -> Usage | None:
        """The same, None if no client has used it: nothing is kept of names that clients make up."""
        return self._usage.get(unit)

    def used(self) -> Iterable[tuple[str, Usage]]:
        """The models that clients of this gateway have used."""
        return self._usage.items()

    def load_times(self, unit: str) -> LoadTimes | None:
        """What the loads of a model have taken; None if this process has not loaded it."""
        usage, described = self._usage.get(unit), self._described.get(unit)
        memory = None if described is None else described.amounts.get(HOST)
        return None if usage is None else usage.load_times(memory)

    def loaded(self, replica: Replica, index: RepositoryIndexResponse) -> list[LoadedModel]:
        """The models that a Triton has loaded or loads, by its index."""
        there = in_state(index, READY, LOADING, UNLOADING)
        units = {self.unit(name) for name in replica.health.models if name in there}
        return [self._loaded_model(replica, unit) for unit in sorted(units | self.loading[replica.address])]

    def _loaded_model(self, replica: Replica, unit: str) -> LoadedModel:
        now, usage, own = self.clock(), self._triton_usage[replica.address], self._usage.get(unit)
        used_at = max(usage.used_at(unit), -math.inf if own is None else own.used_at)
        clients = frozenset[str]() if own is None else own.clients(now)
        is_loading = any(unit in units for units in self.loading.values())
        is_new = usage.loaded_seconds(unit) < self._kept_seconds
        return LoadedModel(
            unit,
            self.amounts(unit),
            stays=unit in self.fixed or is_loading or is_new,
            busy=own is not None and own.in_flight > 0,
            idle_seconds=now - used_at,
            clients=frozenset() if unit in self.fixed else clients,
        )

    def mark_loaded(self, replica: Replica, unit: str, seconds: float) -> None:
        """Record that this process has loaded a model, and how long that took."""
        self._triton_usage[replica.address].mark_loaded(unit)
        self.usage(unit).add_load(seconds)

    def forget_gone(self, in_progress: Collection[str]) -> None:
        """Remove what is known of Tritons that are no longer used, and their metrics: pods change their addresses."""
        used = {replica.address for replica in self._pool.replicas}
        for address in self._reported - used:
            self._reported.remove(address)
            forget(metrics.MODELS_LOADED, address)
            forget(metrics.MODELS_MEMORY, address)
        kept = used | {address for address, units in self.loading.items() if units} | set(in_progress)
        for known in (self.loading, self._triton_usage, self._lists, self._ready):
            for address in known.keys() - kept:
                known.pop(address, None)

    def _units(self, replica: Replica) -> set[str]:
        return {self.unit(name) for name in replica.health.models}

    def _report(self, replica: Replica) -> None:
        self._reported.add(replica.address)
        held = self.held(replica)
        metrics.MODELS_LOADED.labels(replica.address).set(len(held))
        metrics.MODELS_MEMORY.labels(replica.address).set(sum(amounts.get(HOST, 0) for amounts in held))


def in_state(index: RepositoryIndexResponse, *states: str) -> set[str]:
    """The models of which a version has one of these states."""
    return {model.name for model in index.models if model.state in states}


def versions_of(unit: str, listed: Iterable[str]) -> set[str]:
    """A model and the ensembles of its versions."""
    return {unit, *pinned_versions(unit, listed)}


def _is_named_as_step(name: str, names: Collection[str]) -> bool:
    """Whether a model is named as `gateway model add` names the steps of another one."""
    base, _, role = name.rpartition("_")
    return role in {PREPROCESSOR, CLASSIFIER} and base in names
