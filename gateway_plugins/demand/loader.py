"""Loads models when requests need them, within a budget of memory for each Triton, and unloads others for them.

Nothing here is needed for a correct answer: a call whose model another gateway has just unloaded loads it again. So the
gateways that share a Triton need no common state but what Triton knows: which models are loaded, and how often each has
answered. Gateways on one machine make room one after the other, by a file lock.
"""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass

import anyio
import structlog
from tritonclient.grpc.service_pb2 import ModelStatisticsResponse, RepositoryIndexResponse

from gateway.deadline import Deadline
from gateway.errors import (
    ContractBroken,
    DeadlineExceeded,
    GatewayError,
    LoadFailed,
    ModelNotFound,
    ModelUnavailable,
    TritonUnreachable,
)
from gateway.inference.backend import LoadTimes
from gateway.inference.uncancelled import Uncancelled
from gateway.limits.lease import Bound
from gateway.metrics import WATCH_FAULTS, forget, series
from gateway.settings import MIB
from gateway.triton.balancing import IMAGES_EACH, rendezvous_order
from gateway.triton.contract import CLASSIFIER, PREPROCESSOR, pinned, pinned_versions
from gateway.triton.health.expected import LOADING, READY, UNLOADING
from gateway.triton.health.reloading import machine_lock
from gateway.triton.pool import Replica, TritonPool
from gateway.values.quantities import size
from gateway_plugins.demand import metrics
from gateway_plugins.demand.memory import (
    HOST,
    Amounts,
    Budget,
    Claim,
    LoadedModel,
    Meter,
    excess,
    grown,
    to_unload,
    total,
)
from gateway_plugins.demand.usage import TritonUsage, Usage

log = structlog.get_logger("gateway")

REFRESH_SECONDS = 5.0
"""Interval at which the models of each Triton and their use are read, and a model may be prefetched."""
ROOM_SECONDS = 0.1
"""Interval at which a request that found no idle model to unload looks again."""
PATIENCE_SECONDS = 1.0
"""After so long without an idle model, new images of a busy one wait until those in flight are done, and it goes."""
DRAIN_SECONDS = 2.0
"""Longest wait for the images in flight of such a model; if they take longer, it stays."""
LOCK_SECONDS = 15.0
"""Longest wait for another process that makes room; after it the budget may be exceeded by one model."""
UNLOAD_SECONDS = 10.0
"""Longest wait for an unloaded model's memory before the next one is loaded."""
POLL_SECONDS = 0.05
OTHERS_LOAD_SECONDS = 120.0
"""Longest wait for a model that another gateway is loading."""
FAILED_SECONDS = 10.0
"""Time before a model that could not be loaded is tried again; until then requests get the same error."""
PREFETCH_INTERVAL_SECONDS = 60.0
"""Models that are requested less often than this are not prefetched."""


TOO_LARGE = (
    "The model {!r} needs {} of memory. The budget is {} ({}), of which {} are for the models that always stay loaded."
)
NO_ROOM = "There is no memory for the model {!r} beside those that are in use; try again later."


class NoRoom(ModelUnavailable):
    """The model does not fit beside those that are in use at this moment."""


@dataclass(frozen=True, slots=True)
class LoadPolicy:
    """When models are loaded and unloaded; times are those of the settings of the same names."""

    budget: Budget
    load_seconds: float = 60.0
    kept_seconds: float = 10.0
    prefetch: bool = True
    max_waiting: int = 64
    """Images that may wait for models at once."""
    refresh_seconds: float = REFRESH_SECONDS


class DemandLoader:
    """Keeps the models of recent requests loaded; see ModelLoader.

    A model here is what clients name, with all its versions and steps. `fixed` are those that always stay loaded. A
    model is loaded on the first Triton in its rendezvous order that is ready and has room. `estimate` returns the
    memory of a model that was never measured, {} if it is unknown.
    """

    def __init__(
        self,
        pool: TritonPool,
        *,
        fixed: Collection[str],
        policy: LoadPolicy,
        meter: Meter,
        estimate: Callable[[str], Amounts] = lambda _: {},
        clock: Callable[[], float] = time.monotonic,
        take_lock: Callable[[str], AbstractContextManager[bool]] = machine_lock,
    ) -> None:
        self._pool = pool
        self._fixed = frozenset(fixed)
        self._policy = policy
        self._meter = meter
        self._estimate = estimate
        self._clock = clock
        self._take_lock = take_lock
        self._waiting = Bound("max_images_waiting", policy.max_waiting)
        self._owner = Uncancelled()
        self._loop: asyncio.Task[None] | None = None
        self._loads: dict[str, asyncio.Task[GatewayError | None]] = {}
        """The load in progress of each model; it returns its error."""
        self._loading: dict[str, dict[str, Amounts]] = defaultdict(dict)
        """By Triton: the models that this process loads there now, and what they need."""
        self._changes: dict[str, int] = defaultdict(int)
        """By Triton: the number of loads and unloads that this process has begun there."""
        self._turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._triton_usage: dict[str, TritonUsage] = defaultdict(lambda: TritonUsage(clock))
        self._usage: dict[str, Usage] = {}
        self._amounts: dict[str, dict[str, int]] = {}
        """The measured memory of each model."""
        self._estimates: dict[str, Amounts] = {}
        """The estimated memory of models."""
        self._unmeasured: set[str] = set()
        """Tritons whose memory could not be read."""
        self._grown: set[str] = set()
        """Models that were measured by what the memory of a Triton's machine has grown by."""
        self._steps: dict[str, tuple[str, ...]] = {}
        """The steps of each model that was loaded."""
        self._lists: dict[str, set[str]] = {}
        """By Triton: all names in its repository."""
        self._ready: dict[str, set[str]] = {}
        """By Triton: the names that it has loaded."""
        self._listed: set[str] = set()
        """All names in the repositories of the Tritons in use."""
        self._reported: set[str] = set()
        """Tritons that have series of metrics."""
        self._refused: dict[str, GatewayError] = {}
        """Names in the repositories that are no models for clients, such as steps."""
        self._failed: dict[str, tuple[float, GatewayError]] = {}
        """Models that could not be loaded: until when they are not tried again, and the error."""

    def start(self) -> None:
        """Begin to follow the Tritons; call this inside their event loop."""
        self._loop = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop; loads in progress are waited for, for a limited time."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        await self._owner.close()
        await self._meter.close()

    @property
    def load_seconds(self) -> float:
        """Longest time that a request waits for a model."""
        return self._policy.load_seconds

    def is_fixed(self, model_name: str) -> bool:
        """Whether a model always stays loaded, so that it is left to recovery."""
        return model_name in self._fixed

    async def loaded(self, model_name: str, model_version: str, deadline: Deadline) -> None:  # noqa: ARG002
        """See ModelLoader.loaded; all versions of a model are loaded together."""
        if model_name in self._fixed:
            return
        unit = self._unit(model_name)
        holders = self._pool.holders(unit)
        elsewhere = self._elsewhere(holders)
        # If the only Triton is away, the call reports that, or is held.
        found = any(replica.health.reachable for replica in holders) or (bool(holders) and not elsewhere)
        series(metrics.MODEL_LOOKUPS, "loaded" if found else "not_loaded").inc()
        if not found:
            await self._wait(unit, deadline, elsewhere)
        self._usage_of(unit).request(self._clock())

    async def load_again(self, model_name: str, deadline: Deadline) -> bool:
        """Load a model that a call did not find; False, without a load, if it is loaded where it should be."""
        unit = self._unit(model_name)
        for replica in self._pool.holders(unit):
            if unit in replica.health.recovering:
                return False
            index = await replica.endpoint.index()
            if unit in _in_state(index, READY):
                return False
            self._pool.forget(replica.address, {unit, *pinned_versions(unit, self._listed)})
        series(metrics.MODEL_LOOKUPS, "unloaded_meanwhile").inc()
        await self._wait(unit, deadline)
        return True

    async def load_elsewhere(self, model_name: str, deadline: Deadline) -> bool:
        """Load a model on a Triton that does not have it, since those that have are away; False if there is none."""
        unit = self._unit(model_name)
        if not (without := self._elsewhere(self._pool.holders(unit))):
            return False
        series(metrics.MODEL_LOOKUPS, "not_loaded").inc()
        await self._wait(unit, deadline, without)
        return True

    @contextmanager
    def call(self, model_name: str, images: int) -> Iterator[None]:
        """A call with this number of images: its model is in use."""
        # A name without a usage was never loaded, and a client may have made it up.
        usage = self._usage.get(self._unit(model_name)) or Usage()
        usage.enter(images)
        try:
            yield
        finally:
            usage.leave(images, self._clock())

    def forget_failure(self, model_name: str) -> None:
        """Load and measure a model again, since an administrator asks for it."""
        for remembered in (self._failed, self._refused, self._estimates, self._amounts):
            remembered.pop(model_name, None)
        self._grown.discard(model_name)

    def not_fixed(self) -> list[str]:
        """The models that requests load, loaded or not, as far as names tell models from their steps.

        What is loaded but not probed is no model for clients, such as a stateful model.
        """
        steps = {step for each in self._steps.values() for step in each}
        ready = set[str]().union(*(self._ready.get(each.address, ()) for each in self._pool.replicas))
        return sorted(
            name
            for name in self._listed - steps - self._refused.keys() - self._fixed
            if self._unit(name) == name
            and not _is_step(name, self._listed)
            and (self._pool.holders(name) or name not in ready)
        )

    def is_loading(self, model_name: str, address: str) -> bool:
        """Whether this gateway has a Triton load a model at this moment."""
        return model_name in self._loading[address]

    def load_times(self, model_name: str) -> LoadTimes | None:
        """What the loads of a model have taken; None if this process has not loaded it."""
        usage = self._usage.get(model_name)
        return None if usage is None else usage.load_times(self.memory_bytes(model_name))

    def memory_bytes(self, model_name: str) -> int | None:
        """The host memory of a model, as last measured; None if it was not."""
        return self._amounts.get(model_name, {}).get(HOST)

    def _elsewhere(self, holders: Sequence[Replica]) -> set[str]:
        """The addresses of some Tritons, unless there is no other one."""
        addresses = {replica.address for replica in holders}
        return addresses if len(addresses) < len(self._pool.replicas) else set()

    async def _wait(self, unit: str, deadline: Deadline, but: Collection[str] = ()) -> None:
        """Wait for the one load of a model, at none of the addresses `but`.

        The load goes on without the requests that have left.
        """
        if self._waiting.free < 1:
            raise self._waiting.full(
                "Too many images wait for models to load: the limit max_images_waiting is {}; try again later."
            )
        self._waiting.add(1)
        left_seconds, most_seconds = deadline.left_seconds, self._policy.load_seconds
        patient_until = self._clock() + PATIENCE_SECONDS
        room: NoRoom | None = None
        try:
            with anyio.move_on_after(min(left_seconds, most_seconds)):
                while (error := await self._load_of(unit, but, patient_until)) is not None:
                    if not isinstance(error, NoRoom):
                        raise error.with_traceback(None)  # else it would grow with each request that raises it
                    room = error
                    await asyncio.sleep(ROOM_SECONDS)
                return
        finally:
            self._waiting.add(-1)
        if any(self.is_loading(unit, replica.address) for replica in self._pool.replicas):
            room = None
        if left_seconds <= most_seconds:
            raise DeadlineExceeded(
                f"The model {unit!r} was not loaded, and the deadline passed before it was; try again later, or with a "
                "longer timeout."
            )
        raise room or ModelUnavailable(
            f"The model {unit!r} is being loaded, which takes more than {most_seconds:g} s; try again later."
        )

    async def _load_of(self, unit: str, but: Collection[str], patient_until: float) -> GatewayError | None:
        """Load a model, or wait for its load in progress; returns the error of the load."""
        if (error := self._failure(unit)) is not None:
            return error
        replicas = [replica for replica in self._order(unit) if replica.address not in but]
        claim = Claim(busy_too=self._clock() >= patient_until)
        task = self._loads.get(unit) or self._begin(unit, replicas, claim)
        await asyncio.wait({task})  # unlike await task, its cancellation does not cancel the task
        return task.result()

    def _failure(self, unit: str) -> GatewayError | None:
        """The error of a model that could not be loaded a moment ago."""
        failed_until, error = self._failed.get(unit, (-math.inf, None))
        if self._clock() < failed_until:
            return error
        self._failed.pop(unit, None)
        return None

    def _begin(
        self, unit: str, replicas: Sequence[Replica], claim: Claim, *, ahead: bool = False
    ) -> "asyncio.Task[GatewayError | None]":
        # In a context of its own: the load does not belong to the request that asks first.
        work = self._load(unit, replicas, claim, "prefetched" if ahead else "requested")
        task = self._loads[unit] = self._owner.start(work, Context())
        task.add_done_callback(lambda _: self._loads.pop(unit, None))
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
                if not isinstance(error, ModelNotFound) and unit in self._listed:
                    # A name that a client has made up is not kept, whatever has failed.
                    self._failed[unit] = (self._clock() + FAILED_SECONDS, error)
                    metrics.MODEL_LOADS.labels("failed").inc()
                    log.warning("demand_load_failed", triton=replica.address, model=unit, cause=error.message)
                return error
            else:
                self._failed.pop(unit, None)
                return None
        return last

    async def _load_at(self, replica: Replica, unit: str, claim: Claim) -> bool:
        """Have a model loaded on a Triton; returns whether this gateway has done it, and not another one."""
        address, began = replica.address, self._clock()
        # Before its turn, which names that clients make up must not take from models.
        if unit not in self._listed:
            with _hanging_is_away():
                await self._list(replica)
        if unit not in self._listed:
            raise ModelNotFound(await self._unknown(replica, unit))
        if _is_step(unit, self._listed):
            self._refused.setdefault(unit, _no_model_for_clients(unit))
        if unit in self._refused:
            raise self._refused[unit]
        async with self._turn(replica) as index:
            if unit in _in_state(index, READY):
                await self._adopt(replica, unit, ours=False)
                return False
            theirs = unit in _in_state(index, LOADING)
            needed = await self._needed(unit)
            if not theirs:
                await self._make_room(replica, unit, needed, index, claim)
            self._changes[address] += 1
            change = self._changes[address]
            self._loading[address][unit] = needed
        try:
            before: Amounts = {}
            if theirs:
                await self._loaded_by_another(replica, unit)
            else:
                before = await self._machine_before(replica, unit)
                await replica.models.load(unit)
            await self._adopt(replica, unit, ours=not theirs)
        except GatewayError as error:
            self._forget(replica, unit)  # recovery would try to load it for ever
            if isinstance(error.__cause__, TritonUnreachable):
                raise TritonUnreachable from error  # no fault of the model: another Triton may load it
            if not theirs:
                with suppress(GatewayError):
                    await self._unload_steps(replica, unit)
            raise
        finally:
            del self._loading[address][unit]
        seconds = self._clock() - began
        if theirs:
            return False
        self._triton_usage[address].mark_loaded(unit)
        self._usage_of(unit).add_load(seconds)
        series(metrics.MODEL_LOAD_SECONDS, unit).observe(seconds)
        log.info("demand_loaded", triton=address, model=unit, seconds=round(seconds, 3))
        self._owner.start(self._measure(replica, unit, before, change), Context())
        return True

    async def _adopt(self, replica: Replica, unit: str, *, ours: bool) -> None:
        """Probe a model that is loaded; one that clients cannot use is refused, and unloaded if it was loaded here."""
        error = await replica.checker.add(unit)
        if error is None:
            self._note_steps(replica)
            return
        if not isinstance(error, ContractBroken):
            raise error
        self._refused[unit] = _no_model_for_clients(unit)
        self._forget(replica, unit)
        if ours:
            with suppress(GatewayError):
                await replica.models.unload(unit)
        raise self._refused[unit]

    async def _make_room(
        self, replica: Replica, unit: str, needed: Amounts, index: RepositoryIndexResponse, claim: Claim
    ) -> None:
        """Unload models until `needed` fits; raises NoRoom, or LoadFailed if it never will."""
        loaded = self._loaded(replica, index)
        names = to_unload(loaded, needed, self._policy.budget, claim)
        if names is None:
            kept = [model for model in loaded if model.name in self._fixed]
            if to_unload(kept, needed, self._policy.budget) is None:
                raise LoadFailed(TOO_LARGE.format(unit, *self._shortage(kept, needed)))
            raise NoRoom(NO_ROOM.format(unit))
        for name in names:
            await self._unload(replica, name)
        if names:
            await self._unloaded(replica, names)

    def _shortage(self, kept: Sequence[LoadedModel], needed: Amounts) -> tuple[str, str, str, str]:
        """What a model needs where it does not fit, the budget there, its setting, and what the `kept` models have."""
        held, budget = total(model.amounts for model in kept), self._policy.budget
        place = min(budget.exceeded(total([needed, held])), key=lambda place: place != HOST)
        most, name = (
            (budget.host_bytes, "models_memory_bytes")
            if place == HOST
            else (budget.gpu_bytes, "models_gpu_memory_bytes")
        )
        needed_mib, held_mib = (-(-amounts.get(place, 0) // MIB) * MIB for amounts in (needed, held))
        return size(needed_mib), size(most), name, size(held_mib)

    async def _unload_steps(self, replica: Replica, unit: str) -> None:
        """Unload what a failed load has left: the steps of a model that no other model needs."""
        others = {step for name, each in self._steps.items() if name != unit for step in each}
        ready = _in_state(await replica.endpoint.index(), READY)
        for step in self._steps.get(unit, own_steps(unit)):
            if step in ready - others:
                await replica.endpoint.unload(step)

    async def _unload(self, replica: Replica, unit: str) -> None:
        """Unload a model once its images in flight are done; raises NoRoom if they take too long."""
        self._forget(replica, unit)  # first, so that no new call goes there; if it stays, the next refresh finds it
        until = time.monotonic() + DRAIN_SECONDS
        while (own := self._usage.get(unit)) is not None and own.in_flight:
            if time.monotonic() >= until:
                raise NoRoom(NO_ROOM.format(unit))
            await asyncio.sleep(POLL_SECONDS)
        log.info("demand_unloaded", triton=replica.address, model=unit)
        self._changes[replica.address] += 1
        self._pool.forget(replica.address, await replica.models.unload(unit))
        metrics.MODEL_EVICTIONS.inc()

    async def _unloaded(self, replica: Replica, units: Sequence[str]) -> None:
        """Wait until Triton has freed the memory of models; their last requests are finished first."""
        names = {name for unit in units for name in (unit, *self._steps.get(unit, ()))}
        until = time.monotonic() + UNLOAD_SECONDS
        while names & _in_state(await replica.endpoint.index(), UNLOADING) and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)

    async def _loaded_by_another(self, replica: Replica, unit: str) -> None:
        until = time.monotonic() + OTHERS_LOAD_SECONDS
        while unit in _in_state(index := await replica.endpoint.index(), LOADING):
            if time.monotonic() >= until:
                break
            await asyncio.sleep(POLL_SECONDS)
        if unit not in _in_state(index, READY):
            raise ModelUnavailable(f"The model {unit!r} could not be loaded; try again later.")

    def _loaded(self, replica: Replica, index: RepositoryIndexResponse) -> list[LoadedModel]:
        """The models that a Triton has loaded or loads, by its index."""
        address, now = replica.address, self._clock()
        usage = self._triton_usage[address]
        there = _in_state(index, READY, LOADING, UNLOADING)
        units = {self._unit(name) for name in replica.health.models if name in there}
        units |= self._loading[address].keys()
        found = []
        for unit in sorted(units):
            own = self._usage.get(unit)
            used_at = max(usage.used_at(unit), -math.inf if own is None else own.used_at)
            idle_seconds = now - used_at
            is_new = usage.loaded_seconds(unit) < self._policy.kept_seconds
            stays = unit in self._fixed or unit in self._loads or is_new
            busy = own is not None and own.in_flight > 0
            amounts = self._loading[address].get(unit) or self._expected(unit)
            found.append(LoadedModel(unit, amounts, stays, busy, idle_seconds))
        return found

    async def _needed(self, unit: str) -> Amounts:
        """The memory that a model will take."""
        if unit not in self._amounts and unit not in self._estimates:
            self._estimates[unit] = await asyncio.to_thread(self._estimate, unit)
        return self._expected(unit)

    def _expected(self, unit: str) -> Amounts:
        """The memory of a model: measured, estimated, or as the largest of the others."""
        if found := self._amounts.get(unit) or self._estimates.get(unit):
            return found
        others = [amounts for name, amounts in self._amounts.items() if name != unit]
        places = {place for amounts in others for place in amounts}
        return {place: max(amounts.get(place, 0) for amounts in others) for place in places}

    async def _machine_before(self, replica: Replica, unit: str) -> Amounts:
        """The memory in use before a load, if the model's memory is measured by what the machine's grows by."""
        if unit in self._grown or (not self._policy.budget.gpu_bytes and await self._meter.models(replica.address)):
            return {}
        return await self._meter.machine(replica.address, refreshed=True)

    async def _measure_processes(self, replica: Replica) -> bool:
        """Record the memory of models that run in processes of their own; returns whether there are any."""
        found = await self._meter.models(replica.address)
        for name, steps in self._steps.items():
            if steps and found.keys() >= {*steps} and self._pool.holders(name):
                self._amounts.setdefault(name, {})[HOST] = sum(found[step] for step in steps)
        return bool(found)

    async def _measure(self, replica: Replica, unit: str, before: Amounts, change: int) -> None:
        """Record the memory of a loaded model: of its processes, or what the machine's has grown by with its load."""
        address = replica.address
        by_process = await self._measure_processes(replica)
        after = await self._meter.machine(address, refreshed=True) if before else {}
        if after and self._changes[address] == change:
            measured = grown(before, after)
            if by_process:
                measured.pop(HOST, None)
            self._amounts.setdefault(unit, {}).update(measured)
            self._grown.add(unit)
        if unit not in self._amounts and not before and address not in self._unmeasured:
            self._unmeasured.add(address)
            log.warning("demand_memory_unknown", triton=address, model=unit)
        await self._keep_budget(replica)
        self._report(replica)

    async def _keep_budget(self, replica: Replica) -> None:
        """Unload models while the budget is exceeded: one takes more than expected, or two gateways loaded at once."""
        if not self._policy.budget.exceeded(total(map(self._expected, self._held(replica)))):
            return
        with suppress(GatewayError):
            async with self._turn(replica) as index:
                for name in excess(self._loaded(replica, index), self._policy.budget):
                    await self._unload(replica, name)

    def _held(self, replica: Replica) -> set[str]:
        return {self._unit(name) for name in replica.health.models}

    def _report(self, replica: Replica) -> None:
        self._reported.add(replica.address)
        held = self._held(replica)
        metrics.MODELS_LOADED.labels(replica.address).set(len(held))
        amounts = sum(self._amounts.get(unit, {}).get(HOST, 0) for unit in held)
        metrics.MODELS_MEMORY.labels(replica.address).set(amounts)

    def _forget_gone(self) -> None:
        """Remove what is known of Tritons that are no longer used, and their metrics: pods change their addresses."""
        used = {replica.address for replica in self._pool.replicas}
        for address in self._reported - used:
            self._reported.remove(address)
            forget(metrics.MODELS_LOADED, address)
            forget(metrics.MODELS_MEMORY, address)
        self._unmeasured &= used
        in_progress = {address for address, units in self._loading.items() if units}
        in_progress |= {address for address, lock in self._turns.items() if lock.locked()}
        kept = used | in_progress
        for known in (self._loading, self._changes, self._turns, self._triton_usage, self._lists, self._ready):
            for address in known.keys() - kept:
                known.pop(address, None)

    async def _run(self) -> None:
        """Follow the Tritons until cancelled."""
        while True:
            try:
                self._forget_gone()
                for replica in self._pool.replicas:
                    with suppress(GatewayError):
                        await self._refresh(replica)
                        await self._measure_processes(replica)
                        await self._keep_budget(replica)
                if self._policy.prefetch:
                    self._prefetch()
            except Exception:
                WATCH_FAULTS.inc()
                log.exception("watch_fault", triton="")
            await asyncio.sleep(self._policy.refresh_seconds)

    async def _refresh(self, replica: Replica) -> RepositoryIndexResponse:
        """Read which models a Triton has, and which of them are used."""
        index = await self._list(replica)
        await replica.checker.discover(index)
        statistics: ModelStatisticsResponse | None = None
        with suppress(GatewayError):
            statistics = await replica.endpoint.statistics("")
        units = {self._unit(name) for name in replica.health.models}
        self._triton_usage[replica.address].update(units & _in_state(index, READY), statistics, self._usage, self._unit)
        self._note_steps(replica)
        self._report(replica)
        return index

    async def _list(self, replica: Replica) -> RepositoryIndexResponse:
        """Read which models a Triton's repository has."""
        index = await replica.endpoint.index()
        self._lists[replica.address] = {model.name for model in index.models}
        self._ready[replica.address] = _in_state(index, READY)
        self._listed = set[str]().union(*(self._lists.get(each.address, ()) for each in self._pool.replicas))
        return index

    def _note_steps(self, replica: Replica) -> None:
        for model in replica.health.models.values():
            if model.steps and self._unit(model.name) == model.name:
                self._steps[model.name] = tuple(dict.fromkeys(step.name for step in model.steps))

    def _prefetch(self) -> None:
        """Load the most requested model that is not loaded where its requests would need it, if it fits.

        A model makes room for another one only if it is idle for longer than that one's mean interval between requests.
        """
        now = self._clock()
        best: tuple[float, str, Replica] | None = None
        for unit, usage in self._usage.items():
            seconds, most = usage.interval_seconds(now), usage.take_most_in_flight()
            if seconds > PREFETCH_INTERVAL_SECONDS or unit in self._loads or self._failure(unit) is not None:
                continue
            holders = {replica.address for replica in self._pool.holders(unit)}
            copies = max(1, -(-most // IMAGES_EACH))
            elsewhere = [replica for replica in self._order(unit) if replica.address not in holders]
            if len(holders) < copies and elsewhere and (best is None or seconds < best[0]):
                best = (seconds, unit, elsewhere[0])
        if best is not None:
            seconds, unit, replica = best
            self._begin(unit, (replica,), Claim(least_idle_seconds=seconds), ahead=True)

    def _order(self, unit: str) -> list[Replica]:
        """The Tritons for a model, by rendezvous hashing; those that are not ready last."""
        replicas = {replica.address: replica for replica in self._pool.replicas}
        ordered = [replicas[address] for address in rendezvous_order(replicas, unit)]
        return sorted(ordered, key=lambda replica: not replica.health.ready)

    @asynccontextmanager
    async def _turn(self, replica: Replica) -> AsyncIterator[RepositoryIndexResponse]:
        """Decide what one Triton has loaded, one task at a time, by its current index."""
        async with self._turns[replica.address]:
            until = time.monotonic() + LOCK_SECONDS
            while True:
                with self._take_lock(f"{replica.address} models") as held:
                    if held or time.monotonic() >= until:
                        with _hanging_is_away():
                            index = await self._refresh(replica)
                        yield index
                        return
                await asyncio.sleep(POLL_SECONDS)

    def _forget(self, replica: Replica, unit: str) -> None:
        self._pool.forget(replica.address, {unit, *pinned_versions(unit, self._listed)})

    async def _unknown(self, replica: Replica, name: str) -> str:
        hint = ""
        with suppress(GatewayError):  # a failed hint must not replace the error
            hint = await replica.models.suggestion(name)
        return f"There is no model {name!r}; {hint or 'GET /models lists the models.'}"

    def _unit(self, name: str) -> str:
        """The model to which a name belongs: that of a version's own ensemble is the model without the version."""
        base, _, version = name.rpartition(".v")
        return base if version.isdecimal() and base in self._listed and pinned(base, version) == name else name

    def _usage_of(self, unit: str) -> Usage:
        return self._usage.setdefault(unit, Usage())


@contextmanager
def _hanging_is_away() -> Iterator[None]:
    """A Triton that does not say which models it has is as good as away: another one may load the model."""
    try:
        yield
    except DeadlineExceeded as exc:
        raise TritonUnreachable from exc


def _in_state(index: RepositoryIndexResponse, *states: str) -> set[str]:
    """The models of which a version has one of these states."""
    return {model.name for model in index.models if model.state in states}


def _no_model_for_clients(name: str) -> ModelNotFound:
    return ModelNotFound(
        f"{name!r} is in Triton's repository, but is no model that classifies images; GET /models lists those."
    )


def own_steps(model_name: str) -> tuple[str, ...]:
    """The names that `gateway model add` gives to the steps of a model."""
    return tuple(f"{model_name}_{role}" for role in (PREPROCESSOR, CLASSIFIER))


def _is_step(name: str, names: Collection[str]) -> bool:
    """Whether a model is named as `gateway model add` names the steps of another one."""
    base, _, role = name.rpartition("_")
    return role in {PREPROCESSOR, CLASSIFIER} and base in names
