"""Loads models on Tritons: each once, on the first Triton in its rendezvous order that is ready and has room."""

import asyncio
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from contextvars import Context

import structlog

from gateway.errors import ContractBroken, GatewayError, ModelNotFound, ModelUnavailable, TritonUnreachable
from gateway.inference.uncancelled import Uncancelled
from gateway.metrics import series
from gateway.triton.balancing import IMAGES_EACH, rendezvous_order
from gateway.triton.health.expected import LOADING, READY
from gateway.triton.pool import TritonPool
from gateway.triton.replica import Replica
from gateway_plugins.demand import metrics
from gateway_plugins.demand.choice import Claim
from gateway_plugins.demand.inventory import Inventory, in_state
from gateway_plugins.demand.room import POLL_SECONDS, NoRoom, RoomMaker, hanging_is_away
from gateway_plugins.demand.usage import IN_USE_SECONDS

log = structlog.get_logger("gateway")

OTHERS_LOAD_SECONDS = 120.0
"""Longest wait for a model that another gateway is loading."""
FAILED_SECONDS = 10.0
"""Time before a model that could not be loaded is tried again; until then requests get the same error."""


class Loads:
    """The loads of this process, one at a time for each model. A load belongs to none of the requests that wait."""

    def __init__(self, pool: TritonPool, inventory: Inventory, room: RoomMaker) -> None:
        self._pool = pool
        self._inventory = inventory
        self._room = room
        self._owner = Uncancelled()
        self._tasks: dict[str, asyncio.Task[GatewayError | None]] = {}
        """The load in progress of each model; it returns its error."""
        self.refused: dict[str, GatewayError] = {}
        """Names in the repositories that are no models for clients, such as steps."""
        self._failed: dict[str, tuple[float, GatewayError]] = {}
        """Models that could not be loaded: until when they are not tried again, and the error."""

    async def close(self) -> None:
        """Wait for the loads in progress, for a limited time."""
        await self._owner.close()

    async def load(self, unit: str, replicas: Sequence[Replica], claim: Claim) -> GatewayError | None:
        """Load a model, or wait for its load in progress; returns the error of the load."""
        if (error := self.failure(unit)) is not None:
            return error
        task = self._tasks.get(unit) or self._begin(unit, replicas, claim, "requested")
        await asyncio.wait({task})  # unlike await task, its cancellation does not cancel the task
        return task.result()

    def failure(self, unit: str) -> GatewayError | None:
        """The error of a model that could not be loaded a moment ago."""
        failed_until, error = self._failed.get(unit, (-math.inf, None))
        if self._inventory.clock() < failed_until:
            return error
        self._failed.pop(unit, None)
        return None

    def forget_failure(self, unit: str) -> None:
        """Try a model again, since an administrator asks for it."""
        self._failed.pop(unit, None)
        self.refused.pop(unit, None)

    def spread(self) -> None:
        """Load the model with the most images in flight on one more Triton, if its Tritons are too few for these.

        A model that is in use elsewhere makes no room for it.
        """
        best: tuple[int, str, Replica] | None = None
        for unit, usage in self._inventory.used():
            most = usage.take_most_in_flight()
            holders = {replica.address for replica in self._pool.holders(unit)}
            elsewhere = [replica for replica in self.order(unit) if replica.address not in holders]
            busy = unit in self._tasks or self.failure(unit) is not None
            if holders and elsewhere and not busy and most > len(holders) * IMAGES_EACH:
                best = max(best or (0, "", elsewhere[0]), (most, unit, elsewhere[0]), key=lambda each: each[0])
        if best is not None:
            _, unit, replica = best
            self._begin(unit, (replica,), Claim(least_idle_seconds=IN_USE_SECONDS), "prefetched")

    def order(self, unit: str) -> list[Replica]:
        """The Tritons for a model, by rendezvous hashing; those that are not ready last."""
        replicas = {replica.address: replica for replica in self._pool.replicas}
        ordered = [replicas[address] for address in rendezvous_order(replicas, unit)]
        return sorted(ordered, key=lambda replica: not replica.health.ready)

    def _begin(
        self, unit: str, replicas: Sequence[Replica], claim: Claim, outcome: str
    ) -> "asyncio.Task[GatewayError | None]":
        # In a context of its own: the load does not belong to the request that asks first.
        task = self._tasks[unit] = self._owner.start(self._load(unit, replicas, claim, outcome), Context())
        task.add_done_callback(lambda _: self._tasks.pop(unit, None))
        return task

    async def _load(self, unit: str, replicas: Sequence[Replica], claim: Claim, outcome: str) -> GatewayError | None:
        """Load a model on the first of some Tritons that is reachable and has room."""
        last: GatewayError = TritonUnreachable()
        for replica in replicas:
            try:
                if await self._load_at(replica, unit, claim):
                    metrics.MODEL_LOADS.labels(outcome).inc()
            except (TritonUnreachable, NoRoom) as error:
                last = error
            except GatewayError as error:
                if not isinstance(error, ModelNotFound) and unit in self._inventory.listed:
                    # A name that a client has made up is not kept, whatever has failed.
                    self._failed[unit] = (self._inventory.clock() + FAILED_SECONDS, error)
                    metrics.MODEL_LOADS.labels("failed").inc()
                    log.warning("demand_load_failed", triton=replica.address, model=unit, cause=error.message)
                return error
            else:
                self._failed.pop(unit, None)
                return None
        return last

    async def _load_at(self, replica: Replica, unit: str, claim: Claim) -> bool:
        """Have a model loaded on a Triton; returns whether this gateway has done it, and not another one."""
        inventory, began = self._inventory, time.monotonic()
        await self._check_name(replica, unit)
        async with self._room.deciding(replica) as index:
            if unit in in_state(index, READY):
                await self._adopt(replica, unit, ours=False)
                return False
            theirs = unit in in_state(index, LOADING)
            if not theirs:
                await inventory.describe(replica, (unit,), index)
                await self._room.make_room(replica, unit, index, claim)
            if claim.client:
                inventory.usage(unit).request(inventory.clock(), claim.client)
            inventory.loading[replica.address].add(unit)
        try:
            if theirs:
                await self._loaded_by_another(replica, unit)
            else:
                await replica.models.load(unit)
            await self._adopt(replica, unit, ours=not theirs)
        except GatewayError as error:
            self._room.forget(replica, unit)  # recovery would try to load it for ever
            if isinstance(error.__cause__, TritonUnreachable):
                raise TritonUnreachable from error  # no fault of the model: another Triton may load it
            if not theirs:
                with suppress(GatewayError):
                    await self._room.unload_steps(replica, unit)
            raise
        finally:
            inventory.loading[replica.address].discard(unit)
        if theirs:
            return False
        seconds = time.monotonic() - began
        inventory.mark_loaded(replica, unit, seconds)
        series(metrics.MODEL_LOAD_SECONDS, unit).observe(seconds)
        log.info("demand_loaded", triton=replica.address, model=unit, seconds=round(seconds, 3))
        self._owner.start(self._settle(replica), Context())
        return True

    async def _settle(self, replica: Replica) -> None:
        """Find out what a model needs that was loaded without being known, and keep the budget."""
        with suppress(GatewayError):
            await self._inventory.refresh(replica)
        await self._room.keep_budget(replica)

    async def _check_name(self, replica: Replica, unit: str) -> None:
        """Raise ModelNotFound for a name that no client can use; such names delay no model's load."""
        if unit not in self._inventory.listed:
            with hanging_is_away():
                await self._inventory.read_names(replica)
        if unit not in self._inventory.listed:
            hint = ""
            with suppress(GatewayError):  # a failed hint must not replace the error
                hint = await replica.models.suggestion(unit)
            raise ModelNotFound(f"There is no model {unit!r}; {hint or 'GET /models lists the models.'}")
        if not self._inventory.is_for_clients(unit):
            self.refused.setdefault(unit, _no_model_for_clients(unit))
        if unit in self.refused:
            raise self.refused[unit]

    async def _adopt(self, replica: Replica, unit: str, *, ours: bool) -> None:
        """Probe a model that is loaded; one that clients cannot use is refused, and unloaded if it was loaded here."""
        error = await replica.checker.add(unit)
        if error is None:
            return
        if not isinstance(error, ContractBroken):
            raise error
        self.refused[unit] = _no_model_for_clients(unit)
        self._room.forget(replica, unit)
        if ours:
            with suppress(GatewayError):
                await replica.models.unload(unit)
        raise self.refused[unit]

    async def _loaded_by_another(self, replica: Replica, unit: str) -> None:
        until = time.monotonic() + OTHERS_LOAD_SECONDS
        while unit in in_state(index := await replica.endpoint.index(), LOADING):
            if time.monotonic() >= until:
                break
            await asyncio.sleep(POLL_SECONDS)
        if unit not in in_state(index, READY):
            raise ModelUnavailable(f"The model {unit!r} could not be loaded; try again later.")


def _no_model_for_clients(name: str) -> ModelNotFound:
    return ModelNotFound(
        f"{name!r} is in Triton's repository, but is no model that classifies images; GET /models lists those."
    )
