"""The memory of models on one Triton: measured as they load, and which of them to unload for another one."""

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx
from prometheus_client.parser import text_string_to_metric_families

from gateway.triton.model_processes import own_bytes

HOST = "host"
"""The key of host memory in `Amounts`; the other keys are GPUs, by their UUIDs."""
HOST_USED, GPU_USED = "nv_cpu_memory_used_bytes", "nv_gpu_memory_used_bytes"
"""Triton's gauges. The first is that of the whole machine, MemTotal - MemAvailable of proc_meminfo(5)."""
READ_SECONDS = 2.0
REFRESHED_SECONDS = 2.2
"""Triton reads its gauges every 2 s (`--metrics-interval-ms`)."""

Amounts = Mapping[str, int]
"""Bytes of host memory and of each GPU."""


def total(parts: Iterable[Amounts]) -> dict[str, int]:
    """The sum of some amounts."""
    found: dict[str, int] = {}
    for part in parts:
        for place, nbytes in part.items():
            found[place] = found.get(place, 0) + nbytes
    return found


@dataclass(frozen=True, slots=True)
class Budget:
    """The most memory of a Triton's models; 0 bytes of a GPU are no limit."""

    host_bytes: int
    gpu_bytes: int = 0

    def exceeded(self, amounts: Amounts) -> set[str]:
        """Where some amounts are above the budget."""
        return {place for place, nbytes in amounts.items() if nbytes > self._most(place)}

    def _most(self, place: str) -> float:
        return self.host_bytes if place == HOST else self.gpu_bytes or math.inf


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that a Triton has loaded, with all its versions and the steps that it alone needs."""

    name: str
    amounts: Amounts
    stays: bool
    """Whether it is never unloaded, or not now: it is loading, or was loaded a moment ago."""
    busy: bool
    """Whether it has images in flight."""
    idle_seconds: float
    """Since its last image, or since it was loaded."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Which models may be unloaded for another one."""

    least_idle_seconds: float = 0.0
    """Only models that have been idle for at least this time."""
    busy_too: bool = False
    """Also those with images in flight, which are finished first."""


ANY_IDLE = Claim()


def to_unload(
    loaded: Sequence[LoadedModel], needed: Amounts, budget: Budget, claim: Claim = ANY_IDLE
) -> list[str] | None:
    """The models to unload so that `needed` fits into the budget: those that were used least recently.

    None if those that may be unloaded do not suffice. A model that frees nothing where memory is short stays.
    """
    chosen, fits = _choose(loaded, needed, budget, claim)
    return chosen if fits else None


def excess(loaded: Sequence[LoadedModel], budget: Budget) -> list[str]:
    """The models to unload since the budget is exceeded; it may still be, by models that stay or are busy."""
    chosen, _ = _choose(loaded, {}, budget, ANY_IDLE)
    return chosen


def _choose(loaded: Sequence[LoadedModel], needed: Amounts, budget: Budget, claim: Claim) -> tuple[list[str], bool]:
    kept = total([needed, *(model.amounts for model in loaded)])
    chosen: list[str] = []
    for model in sorted(loaded, key=lambda model: (model.busy, -model.idle_seconds)):
        short = budget.exceeded(kept)
        if not short:
            break
        helps = any(model.amounts.get(place, 0) > 0 for place in short)
        may_go = not model.stays and (claim.busy_too or not model.busy)
        if may_go and model.idle_seconds >= claim.least_idle_seconds and helps:
            chosen.append(model.name)
            kept = {place: nbytes - model.amounts.get(place, 0) for place, nbytes in kept.items()}
    return chosen, not budget.exceeded(kept)


class Meter(Protocol):
    """Reads the memory in use; what it cannot read is not in the result. Nothing is raised."""

    async def models(self, address: str) -> Mapping[str, int]:
        """Host memory of each model and step that runs in processes of its own, at the Triton with this address."""
        ...

    async def machine(self, address: str, *, refreshed: bool = False) -> Amounts:
        """Memory in use by all programs on a Triton's machine; `refreshed`: by values newer than the call."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class MetricsMeter:
    """Reads Triton's own metrics, over HTTP at a port of its address; port 0 for none."""

    def __init__(self, port: int, client: httpx.AsyncClient | None = None) -> None:
        self._port = port
        self._client = client

    async def models(self, address: str) -> Mapping[str, int]:  # noqa: ARG002  # of a protocol
        """See Meter.models: nothing, since the processes run elsewhere."""
        return {}

    async def machine(self, address: str, *, refreshed: bool = False) -> Amounts:
        """See Meter.machine."""
        if not self._port:
            return {}
        if refreshed:
            await asyncio.sleep(REFRESHED_SECONDS)
        host = address.rpartition(":")[0]
        try:
            if self._client is None:
                self._client = httpx.AsyncClient(timeout=READ_SECONDS, trust_env=False)
            response = await self._client.get(f"http://{host}:{self._port}/metrics")
            response.raise_for_status()
            return used(response.text)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError):
            return {}

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()


def used(exposition: str) -> dict[str, int]:
    """The memory in use, from Triton's metrics; raises ValueError for a text that is no exposition."""
    found: dict[str, int] = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            if sample.name == HOST_USED:
                found[HOST] = int(sample.value)
            elif sample.name == GPU_USED:
                found[sample.labels.get("gpu_uuid", "")] = int(sample.value)
    return found


def grown(before: Amounts, after: Amounts) -> dict[str, int]:
    """By how much the memory in use has grown; a place that is missing in one reading is left out."""
    return {place: max(0, after[place] - before[place]) for place in after if place in before}


class LocalMeter(MetricsMeter):
    """Also reads the processes of the models, for a Triton that runs on this machine with a repository."""

    def __init__(self, port: int, repository: Path, client: httpx.AsyncClient | None = None) -> None:
        super().__init__(port, client)
        self._repository = repository.resolve()

    async def models(self, address: str) -> Mapping[str, int]:  # noqa: ARG002  # of a protocol
        """See Meter.models."""
        return await asyncio.to_thread(own_bytes, self._repository)
