"""Makes room for a model on a Triton: unloads those that were used least recently, once their images are done."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress

import structlog
from tritonclient.grpc.service_pb2 import RepositoryIndexResponse

from gateway.errors import DeadlineExceeded, GatewayError, LoadFailed, ModelUnavailable, TritonUnreachable
from gateway.settings import MIB
from gateway.triton.health.expected import READY, UNLOADING
from gateway.triton.pool import TritonPool
from gateway.triton.replica import Replica
from gateway.values.quantities import size
from gateway_plugins.demand import metrics
from gateway_plugins.demand.choice import Budget, Claim, LoadedModel, excess, to_unload, total
from gateway_plugins.demand.inventory import Inventory, in_state, versions_of
from gateway_plugins.demand.memory import HOST, Amounts
from gateway_plugins.shared.files import machine_lock

log = structlog.get_logger("gateway")

DRAIN_SECONDS = 2.0
"""Longest wait for the images in flight of a busy model; if they take longer, it stays."""
LOCK_SECONDS = 15.0
"""Longest wait for another process that makes room; after it the budget may be exceeded by one model."""
UNLOAD_SECONDS = 10.0
"""Longest wait for an unloaded model's memory before the next one is loaded."""
POLL_SECONDS = 0.05

TOO_LARGE = (
    "The model {!r} needs {} of memory. The budget is {} ({}), of which {} are for the models that always stay loaded."
)
NO_ROOM = "There is no memory for the model {!r} beside those that are in use; try again later."


class NoRoom(ModelUnavailable):
    """The model does not fit beside those that are in use at this moment."""


class RoomMaker:
    """Keeps the models of each Triton within a budget.

    Gateways on one machine decide one after the other, by a file lock.
    """

    def __init__(
        self,
        pool: TritonPool,
        inventory: Inventory,
        budget: Budget,
        take_lock: Callable[[str], AbstractContextManager[bool]] = machine_lock,
    ) -> None:
        self._pool = pool
        self._inventory = inventory
        self._budget = budget
        self._take_lock = take_lock
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @asynccontextmanager
    async def deciding(self, replica: Replica) -> AsyncIterator[RepositoryIndexResponse]:
        """Decide what one Triton has loaded, one task at a time, by its current index."""
        async with self._locks[replica.address]:
            until = time.monotonic() + LOCK_SECONDS
            while True:
                with self._take_lock(f"{replica.address} models") as held:
                    if held or time.monotonic() >= until:
                        with hanging_is_away():
                            index = await self._inventory.refresh(replica)
                        yield index
                        return
                await asyncio.sleep(POLL_SECONDS)

    async def make_room(self, replica: Replica, unit: str, index: RepositoryIndexResponse, claim: Claim) -> None:
        """Unload models until one more fits; raises NoRoom, or LoadFailed if it never will."""
        needed = self._inventory.amounts(unit)
        loaded = [each for each in self._inventory.loaded(replica, index) if each.name != unit]
        names = to_unload(loaded, needed, self._budget, claim)
        if names is None:
            kept = [model for model in loaded if model.name in self._inventory.fixed]
            if to_unload(kept, needed, self._budget) is None:
                raise LoadFailed(TOO_LARGE.format(unit, *self._shortage(kept, needed)))
            raise NoRoom(NO_ROOM.format(unit))
        for name in names:
            await self.unload(replica, name)
        if names:
            await self._unloaded(replica, names)

    async def keep_budget(self, replica: Replica) -> None:
        """Unload models while the budget is exceeded: two gateways loaded at once, or a model has become larger."""
        with suppress(GatewayError):
            if not self._budget.exceeded(total(self._inventory.held(replica))):
                return
            async with self.deciding(replica) as index:
                for name in excess(self._inventory.loaded(replica, index), self._budget):
                    await self.unload(replica, name)

    async def unload(self, replica: Replica, unit: str) -> None:
        """Unload a model once its images in flight are done; raises NoRoom if they take too long."""
        self.forget(replica, unit)  # first, so that no new call goes there; if it stays, the next refresh finds it
        until = time.monotonic() + DRAIN_SECONDS
        while (own := self._inventory.known_usage(unit)) is not None and own.in_flight:
            if time.monotonic() >= until:
                raise NoRoom(NO_ROOM.format(unit))
            await asyncio.sleep(POLL_SECONDS)
        log.info("demand_unloaded", triton=replica.address, model=unit)
        self._pool.forget(replica.address, await replica.models.unload(unit))
        metrics.MODEL_EVICTIONS.inc()

    async def unload_steps(self, replica: Replica, unit: str) -> None:
        """Unload what a failed load has left: the steps of a model that no other model needs."""
        ready = in_state(await replica.endpoint.index(), READY)
        for step in sorted(ready & self._inventory.own_steps(unit)):
            await replica.endpoint.unload(step)

    def forget(self, replica: Replica, unit: str) -> None:
        """Stop probing a model and its versions at a Triton."""
        self._pool.forget(replica.address, versions_of(unit, self._inventory.listed))

    def in_progress(self) -> set[str]:
        """The Tritons for which something is being decided."""
        return {address for address, lock in self._locks.items() if lock.locked()}

    def forget_gone(self) -> None:
        """Remove the locks of Tritons that are no longer used."""
        kept = {replica.address for replica in self._pool.replicas} | self.in_progress()
        for address in self._locks.keys() - kept:
            del self._locks[address]

    async def _unloaded(self, replica: Replica, units: Sequence[str]) -> None:
        """Wait until Triton has freed the memory of models; their last requests are finished first."""
        names = {name for unit in units for name in (unit, *self._inventory.steps(unit))}
        until = time.monotonic() + UNLOAD_SECONDS
        while names & in_state(await replica.endpoint.index(), UNLOADING) and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)

    def _shortage(self, kept: Sequence[LoadedModel], needed: Amounts) -> tuple[str, str, str, str]:
        """What a model needs where it does not fit, the budget there, its setting, and what the `kept` models have."""
        held = total(model.amounts for model in kept)
        place = min(self._budget.exceeded(total([needed, held])), key=lambda place: place != HOST)
        name = "models_memory_bytes" if place == HOST else "models_gpu_memory_bytes"
        needed_mib, held_mib = (-(-amounts.get(place, 0) // MIB) * MIB for amounts in (needed, held))
        return size(needed_mib), size(int(self._budget.most(place))), name, size(held_mib)


@contextmanager
def hanging_is_away() -> Iterator[None]:
    """A Triton that does not say which models it has is as good as away: another one may load the model."""
    try:
        yield
    except DeadlineExceeded as exc:
        raise TritonUnreachable from exc
