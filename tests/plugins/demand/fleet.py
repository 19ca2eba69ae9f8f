"""Fake Tritons with many models, and gateways over them that load models on demand."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gateway.triton.pool import Share, TritonPool
from gateway.triton.quarantine import Quarantine
from gateway.triton.seal import Seal
from gateway_plugins.demand.backend import DemandBackend
from gateway_plugins.demand.loader import DemandLoader, LoadPolicy
from gateway_plugins.demand.memory import HOST, Amounts, Budget
from tests.doubles.triton import FakeEndpoint, FakeTriton
from tests.gateway.triton.fleet import MODEL, SCHEDULE, wait_until

MODEL_BYTES = 100
"""Memory of each model here, in the unit of the budgets."""


def ensembles(number: int) -> dict[str, tuple[str, ...]]:
    """The default model, and `number` others: m0, m1, …"""
    names = [MODEL, *(f"m{index}" for index in range(number))]
    return {name: (f"{name}_preprocessor", f"{name}_classifier") for name in names}


def triton_with(number: int, **options) -> FakeTriton:
    """A Triton that was started with the default model alone."""
    models = ensembles(number)
    others = {name for name in models if name != MODEL}
    parts = {part for name in others for part in (name, *models[name])}
    return FakeTriton(ensembles=models, never_loaded=parts, **options)


@dataclass
class FakeMeter:
    """Each model that a Triton has loaded takes `model_bytes`, in processes of its own."""

    tritons: Mapping[str, FakeTriton]
    model_bytes: dict[str, int] = field(default_factory=dict)
    """By model, MODEL_BYTES unless it is here."""

    async def models(self, address: str) -> dict[str, int]:
        triton = self.tritons[address]
        models = {}
        for name, (preprocessor, classifier) in triton.ensembles.items():
            if name in loaded(triton):
                models[preprocessor] = 0
                models[classifier] = self.model_bytes.get(name, MODEL_BYTES)
        return models

    async def machine(self, address: str, *, refreshed: bool = False) -> Amounts:
        return {}

    async def close(self) -> None:
        pass


def loaded(triton: FakeTriton) -> set[str]:
    """The models that clients can use, which a Triton has loaded."""
    gone = triton.never_loaded | triton.unloaded | triton.failed.keys()
    return {name for name, steps in triton.ensembles.items() if not gone & {name, *steps}}


class DemandGateway:
    """One gateway process over some Tritons."""

    def __init__(self, tritons: dict[str, FakeTriton], *, room: int, name: str, load: Sequence[str], **policy) -> None:
        self.tritons = tritons
        self.meter = FakeMeter(tritons)
        self.estimates: dict[str, Amounts] = {}
        self.dns = list(tritons)
        """The addresses of the name by which the gateway finds its Tritons."""
        self.pool = TritonPool(
            ["tritons.test:8001"],
            model_name=MODEL,
            schedule=SCHEDULE,
            heal=True,
            share=Share(0, 32, name),
            load=load,
            on_demand=True,
            connect=lambda address: FakeEndpoint(address, tritons[address]),
            lookup=self._look_up,
        )
        options = {"kept_seconds": 0.0, "prefetch": False, "refresh_seconds": 0.02, **policy}
        self.loader = DemandLoader(
            self.pool,
            fixed=(MODEL, *load),
            policy=LoadPolicy(Budget(room * MODEL_BYTES), **options),
            meter=self.meter,
            estimate=lambda model: self.estimates.get(model, {HOST: MODEL_BYTES}),
        )
        self.backend = DemandBackend(
            self.pool, self.loader, model_name=MODEL, seal=Seal(b"secret of a test"), quarantine=Quarantine(600)
        )

    async def _look_up(self, host: str, port: int) -> list[str]:
        return list(self.dns)

    async def all_ready(self) -> None:
        await wait_until(lambda: all(health.ready for health in self.backend.health()))


@asynccontextmanager
async def gateways_of(
    number: int = 1,
    *,
    tritons: int = 1,
    models: int = 4,
    room: int = 3,
    load: Sequence[str] = (),
    triton: Mapping[str, object] | None = None,
    **policy,
) -> AsyncIterator[list[DemandGateway]]:
    """Gateways over the same Tritons, each with room for `room` models, the default one included."""
    fakes = {f"10.0.0.{index}:8001": triton_with(models, **(triton or {})) for index in range(1, tritons + 1)}
    found = [DemandGateway(fakes, room=room, name=str(index), load=load, **policy) for index in range(number)]
    for gateway in found:
        await gateway.backend.start()
    try:
        for gateway in found:
            await gateway.all_ready()
        yield found
    finally:
        await asyncio.gather(*(gateway.backend.close() for gateway in found))
