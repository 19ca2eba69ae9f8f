"""Fake Triton servers with many models, and gateways over them that load models on demand."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from tritonclient.grpc.service_pb2 import RepositoryIndexResponse

from gateway.plugins.demand.backend import DemandBackend
from gateway.plugins.demand.loader import DemandLoader
from gateway.plugins.demand.models import HOST, Budget, Described, ModelDescriptions
from gateway.timing import Deadline
from gateway.triton.opening import open_pool
from gateway.triton.replica import Replica
from tests.doubles.triton import FakeEndpoint, FakeTriton
from tests.gateway.triton.fleet import MODEL, SCHEDULE, wait_until
from tests.settings import Settings

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


class FakeDescriptions(ModelDescriptions):
    """Each model takes `model_bytes`: MODEL_BYTES, unless it is there.

    Unless `readable`, the gateway cannot read the repository, and only a Triton that has loaded a model describes it.
    """

    def __init__(self, tritons: Mapping[str, FakeTriton], model_bytes: Mapping[str, int], *, readable: bool) -> None:
        super().__init__(None)
        self.tritons = tritons
        self.model_bytes = dict(model_bytes)
        self.readable = readable

    async def of_repository(self) -> dict[str, Described] | None:
        triton = next(iter(self.tritons.values()))
        return {name: self._described(triton, name) for name in triton.ensembles} if self.readable else None

    async def of_triton(self, replica: Replica, name: str, index: RepositoryIndexResponse) -> Described | None:
        return self._described(self.tritons[replica.address], name)

    def _described(self, triton: FakeTriton, name: str) -> Described:
        return Described(triton.ensembles[name], {HOST: self.model_bytes.get(name, MODEL_BYTES)})


def loaded(triton: FakeTriton) -> set[str]:
    """The models that clients can use, which a Triton has loaded."""
    gone = triton.never_loaded | triton.unloaded | triton.failed.keys()
    return {name for name, steps in triton.ensembles.items() if not gone & {name, *steps}}


class DemandGateway:
    """One gateway process over some Triton servers."""

    def __init__(
        self,
        tritons: dict[str, FakeTriton],
        *,
        room: int,
        load: Sequence[str],
        descriptions: FakeDescriptions,
        **policy,
    ) -> None:
        self.tritons = tritons
        self.descriptions = descriptions
        self.endpoints: list[FakeEndpoint] = []
        self.dns = list(tritons)
        """The addresses behind the name of the gateway's Triton servers."""
        settings = Settings(_env_file=None, model=MODEL, load_models=load, triton_url="tritons.test:8001")
        self.pool = open_pool(settings, self._connect, on_demand=True, lookup=self._look_up, schedule=SCHEDULE)
        self.loader = DemandLoader(
            self.pool,
            fixed=(MODEL, *load),
            budget=Budget(room * MODEL_BYTES),
            descriptions=descriptions,
            **{"kept_seconds": 0.0, **policy},
        )
        self.backend = DemandBackend(self.pool, self.loader, settings)

    @property
    def triton(self) -> FakeTriton:
        (triton,) = self.tritons.values()
        return triton

    async def wait_for(self, model: str, *, seconds: float = 20) -> None:
        """Wait for a model as a request does."""
        await self.loader.loaded(model, Deadline.after(seconds))

    def _connect(self, address: str) -> FakeEndpoint:
        self.endpoints.append(FakeEndpoint(address, self.tritons[address]))
        return self.endpoints[-1]

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
    model_bytes: Mapping[str, int] | None = None,
    readable: bool = True,
    **policy,
) -> AsyncIterator[list[DemandGateway]]:
    """Gateways over the same Triton servers, which have room for `room` models, including the default one."""
    fakes = {f"10.0.0.{index}:8001": triton_with(models, **(triton or {})) for index in range(1, tritons + 1)}
    descriptions = FakeDescriptions(fakes, model_bytes or {}, readable=readable)
    found = [DemandGateway(fakes, room=room, load=load, descriptions=descriptions, **policy) for _ in range(number)]
    for gateway in found:
        await gateway.backend.start()
    try:
        for gateway in found:
            await gateway.all_ready()
        yield found
    finally:
        await asyncio.gather(*(gateway.backend.close() for gateway in found))
