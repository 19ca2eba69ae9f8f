"""Loads models when requests need them, and unloads the least recently used ones, within the budget of each Triton.

Nothing here is needed for a correct answer: a call whose model another gateway has just unloaded loads it again. So the
gateways of a Triton share no state except Triton's.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from contextvars import Context

import anyio
import structlog
from tritonclient.grpc.service_pb2 import RepositoryIndexResponse

from gateway.errors import (
    ContractBroken,
    DeadlineExceeded,
    GatewayError,
    LoadFailed,
    ModelNotFound,
    ModelUnavailable,
    TritonUnreachable,
)
from gateway.inference.tasks import CLOSING_SECONDS, Tasks
from gateway.limits.bounds import Bound
from gateway.metrics import series
from gateway.plugins.demand import metrics
from gateway.plugins.demand.models import HOST, Budget, ModelDescriptions, Models, in_state, to_unload, total
from gateway.timing import Deadline
from gateway.triton.health.state import READY, UNLOADING
from gateway.triton.pool import TritonPool, rendezvous_order
from gateway.triton.replica import Replica
from gateway.values.files import machine_lock

log = structlog.get_logger("gateway")

LOAD_SECONDS = 60.0
"""Longest time that a request waits for its model; a longer load continues without it."""
KEPT_SECONDS = 5.0
"""A model is not unloaded for another one this soon after its load; otherwise two busy models would only be loaded."""
DRAIN_SECONDS = 2.0
"""Longest wait for the images in flight of a model before it is unloaded; if they take longer, it stays."""
UNLOAD_SECONDS = 10.0
"""Longest wait for an unloaded model's memory before the next one is loaded."""
FAILED_SECONDS = 10.0
"""Time before a model that could not be loaded is tried again; until then requests get the same error."""
LOCK_SECONDS = 15.0
"""Longest wait for another process that makes room; after it the budget may be exceeded by one model."""
POLL_SECONDS = 0.05
RESERVED = 4
"""One in this many waits is for clients that have no image that waits, so that one client cannot take all."""


class NoRoom(ModelUnavailable):
    """The model does not fit next to the models that must stay at this moment."""


class DemandLoader:
    """Keeps the models of recent requests loaded. `fixed` models always stay loaded.

    A client waits for one load at a time: one that needs more models than fit delays its own requests.
    """

    def __init__(
        self,
        pool: TritonPool,
        *,
        fixed: Collection[str],
        budget: Budget,
        descriptions: ModelDescriptions,
        max_waiting: int = 64,
        load_seconds: float = LOAD_SECONDS,
        kept_seconds: float = KEPT_SECONDS,
        take_lock: Callable[[str], AbstractContextManager[bool]] = machine_lock,
    ) -> None:
        self.models = Models(descriptions, fixed)
        self.load_seconds = load_seconds
        self._pool = pool
        self._budget = budget
        self._kept_seconds = kept_seconds
        self._take_lock = take_lock
        self._waiting = Bound("max_images_waiting", max_waiting)
        self._waiting_of: Counter[str] = Counter()
        """The images of each client that wait."""
        self._turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One for each client with images that wait."""
        self._deciding: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By Triton."""
        self._owner = Tasks()
        self._tasks: dict[str, asyncio.Task[GatewayError | None]] = {}
        """The load in progress of each model; it returns its error."""
        self._failed: dict[str, tuple[float, GatewayError]] = {}
        """Models that could not be loaded: until when they are not tried again, and the error."""
        self._refused: set[str] = set()
        """Models that do not classify images, as a probe has shown."""

    async def close(self) -> None:
        """Wait a limited time for the loads in progress."""
        await self._owner.close(CLOSING_SECONDS)

    def is_fixed(self, model_name: str) -> bool:
        """Whether a model always stays loaded, so that it is left to recovery."""
        return model_name in self.models.fixed

    async def not_fixed(self) -> list[str]:
        """The models that requests load, loaded or not, as far as they are known."""
        for replica in self._order(""):
            with suppress(GatewayError):
                await self.models.read(replica)
                break
        return sorted(filter(self.models.is_for_clients, self.models.listed - self.models.fixed - self._refused))

    async def loaded(self, model_name: str, deadline: Deadline, client: str = "") -> None:
        """Return once a server has loaded a model, with all of its versions; it stays loaded for a while.

        Does not wait for a model that always stays loaded, such as the default one: its calls report if it is missing.
        `client` identifies the sender, see gateway.values.clients; "" if it is not known.

        Raises ModelNotFound, ModelUnavailable, LoadFailed, TritonUnreachable, DeadlineExceeded, or Overloaded if too
        many requests wait.
        """
        if self.is_fixed(model_name):
            return
        unit = self.models.unit(model_name)
        found = self._is_loaded(unit)
        series(metrics.MODEL_LOOKUPS, "loaded" if found else "not_loaded").inc()
        if not found:
            await self._wait(unit, deadline, client)
        self.models.mark_used(unit)

    async def load_again(self, model_name: str, deadline: Deadline) -> bool:
        """Load a model that a call did not find; False, without a load, if it is loaded where it should be."""
        unit = self.models.unit(model_name)
        for replica in self._pool.holders(unit):
            if unit in replica.health.recovering or unit in in_state(await replica.endpoint.index(), READY):
                return False
            replica.health.forget(self.models.versions(unit))
        series(metrics.MODEL_LOOKUPS, "unloaded_meanwhile").inc()
        await self._wait(unit, deadline)
        return True

    def call(self, model_name: str, images: int) -> AbstractContextManager[None]:
        """A call with this number of images: its model is in use."""
        return self.models.call(self.models.unit(model_name), images)

    def forget_failure(self, model_name: str) -> None:
        """Load a model that has failed again, since an administrator asks for it."""
        self._failed.pop(model_name, None)
        self._refused.discard(model_name)

    def _is_loaded(self, unit: str) -> bool:
        """Whether a Triton that answers has a model; if the only one is away, the call reports that, or is held."""
        holders = self._pool.holders(unit)
        return any(replica.health.reachable for replica in holders) or len(holders) == len(self._pool.in_use) > 0

    async def _wait(self, unit: str, deadline: Deadline, client: str = "") -> None:
        """Wait for the one load of a model; the load continues if a waiting request leaves."""
        left_seconds, room = deadline.left_seconds, None
        with self._place(client), anyio.move_on_after(min(left_seconds, self.load_seconds)):
            async with self._turns[client] if client else asyncio.Lock():
                while not self._is_loaded(unit):
                    error = await self._load(unit)
                    if error is None:
                        return
                    if not isinstance(error, NoRoom):
                        raise error.with_traceback(None)  # else it would grow with each request that raises it
                    room = error
                    await asyncio.sleep(2 * POLL_SECONDS)
                return
        if room is not None and unit not in self._tasks:
            raise room
        kind = DeadlineExceeded if left_seconds <= self.load_seconds else ModelUnavailable
        waited = min(left_seconds, self.load_seconds)
        raise kind(f"The model {unit!r} was not loaded within {waited:.3g} s; the load goes on: try again later.")

    @contextmanager
    def _place(self, client: str) -> Iterator[None]:
        """One of the waits; raises Overloaded if there is none left for this client."""
        reserved = self._waiting.most // RESERVED if client and self._waiting_of[client] else 0
        if self._waiting.free < 1 + reserved:
            raise self._waiting.full(
                "Too many images wait for models to load: the limit max_images_waiting is {}; try again later."
            )
        self._waiting.add(1)
        self._waiting_of[client] += 1
        try:
            yield
        finally:
            self._waiting.add(-1)
            self._waiting_of[client] -= 1
            if not self._waiting_of[client]:
                del self._waiting_of[client]
                self._turns.pop(client, None)

    async def _load(self, unit: str) -> GatewayError | None:
        """Load a model, or wait for its load in progress; returns the error of the load."""
        failed_until, error = self._failed.get(unit, (0.0, None))
        if time.monotonic() < failed_until:
            return error
        if (task := self._tasks.get(unit)) is None:
            # A new context: the load does not belong to the request that starts it.
            task = self._tasks[unit] = self._owner.start(self._load_somewhere(unit), Context())
            task.add_done_callback(lambda _: self._tasks.pop(unit, None))
        await asyncio.wait({task})  # unlike await task, its cancellation does not cancel the task
        return task.result()

    def _order(self, unit: str) -> list[Replica]:
        """The Triton servers for a model, by rendezvous hashing; the ones that are not ready come last."""
        ordered = [self._pool.in_use[address] for address in rendezvous_order(self._pool.in_use, unit)]
        return sorted(ordered, key=lambda replica: not replica.health.ready)

    async def _load_somewhere(self, unit: str) -> GatewayError | None:
        """Load a model on the first Triton that is reachable and has room."""
        last: GatewayError = TritonUnreachable()
        for replica in self._order(unit):
            try:
                await self._load_at(replica, unit)
            except (TritonUnreachable, NoRoom) as error:
                last = error
            except GatewayError as error:
                if isinstance(error.__cause__, TritonUnreachable):
                    last = error.__cause__  # the Triton ended meanwhile; another one may load the model
                    continue
                if unit in self.models.listed:  # a name that a client has made up is not kept
                    self._failed[unit] = (time.monotonic() + FAILED_SECONDS, error)
                    log.warning("demand_load_failed", triton=replica.address, model=unit, cause=error.message)
                return error
            else:
                self._failed.pop(unit, None)
                return None
        return last

    async def _load_at(self, replica: Replica, unit: str) -> None:
        """Have a model loaded on a Triton, by this gateway or another one."""
        began, loading = time.monotonic(), (replica.address, unit)
        await self._check_name(replica, unit)
        async with self._index_while_deciding(replica) as index:
            ours = unit not in in_state(index, READY)
            if ours:
                await self._make_room(replica, unit, index)
            self.models.loading.add(loading)
        try:
            if ours:
                await replica.load(unit)
            await self._probe(replica, unit, ours=ours)
        except GatewayError:
            replica.health.forget(self.models.versions(unit))  # recovery would try to load it for ever
            if ours:
                with suppress(GatewayError):
                    await self._unload_steps(replica, unit)
            raise
        finally:
            self.models.loading.discard(loading)
        if ours:
            seconds = time.monotonic() - began
            self.models.mark_loaded(unit)
            series(metrics.MODEL_LOAD_SECONDS, unit).observe(seconds)
            log.info("demand_loaded", triton=replica.address, model=unit, seconds=round(seconds, 3))
            with suppress(GatewayError):  # the memory of a model that a remote Triton had not loaded is known only now
                async with self._index_while_deciding(replica) as index:
                    await self._make_room(replica, "", index)

    async def _check_name(self, replica: Replica, unit: str) -> None:
        """Raise ModelNotFound for a name that no client can use; such names delay no model's load."""
        if unit not in self.models.listed:
            await self.models.read(replica)
        if unit not in self.models.listed:
            raise ModelNotFound(f"There is no model {unit!r}; GET /models lists the models.")
        if unit in self._refused or not self.models.is_for_clients(unit):
            raise _no_model_for_clients(unit)

    async def _probe(self, replica: Replica, unit: str, *, ours: bool) -> None:
        """Probe a model that is loaded; one that does not classify images is refused, and unloaded if it is `ours`."""
        error = await replica.checker.add(unit)
        if isinstance(error, ContractBroken):
            self._refused.add(unit)
            if ours:  # any other model belongs to somebody else: clients of this gateway must not disturb it
                with suppress(GatewayError):
                    await replica.unload(unit)
            raise _no_model_for_clients(unit)
        if error is not None:
            raise error

    @asynccontextmanager
    async def _index_while_deciding(self, replica: Replica) -> AsyncIterator[RepositoryIndexResponse]:
        """Decide what one Triton has loaded, one process of this machine at a time, by its current index."""
        async with self._deciding[replica.address]:
            until = time.monotonic() + LOCK_SECONDS
            while True:
                with self._take_lock(f"{replica.address} models") as held:
                    if held or time.monotonic() >= until:
                        yield await self.models.read(replica)
                        return
                await asyncio.sleep(POLL_SECONDS)

    async def _make_room(self, replica: Replica, unit: str, index: RepositoryIndexResponse) -> None:
        """Unload models until one more fits, or none more for ""; raises NoRoom, or LoadFailed if it never will."""
        if unit:
            await self.models.describe(replica, unit, index)
        needed = self.models.amounts(unit) if unit else {}
        loaded = await self.models.loaded(replica, index, self._kept_seconds)
        loaded = [model for model in loaded if model.name != unit]
        names = to_unload(loaded, needed, self._budget)
        if names is None:
            fixed = total(model.amounts for model in loaded if model.name in self.models.fixed)
            if places := self._budget.exceeded(total([needed, fixed])):
                name = "models_memory_bytes" if HOST in places else "models_gpu_memory_bytes"
                raise LoadFailed(f"The model {unit!r} and the models that always stay loaded do not fit into {name}.")
            raise NoRoom(f"There is no memory for the model {unit!r} and the models in use. Retry later.")
        if not names:
            return
        for name in names:
            await self._unload(replica, name, unit)
        freed = {each for name in names for each in (name, *self.models.steps(name))}
        until = time.monotonic() + UNLOAD_SECONDS
        while freed & in_state(await replica.endpoint.index(), UNLOADING) and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)

    async def _unload(self, replica: Replica, unit: str, needed_by: str) -> None:
        """Unload a model once its images in flight are done; raises NoRoom if they take too long."""
        # First, so that it gets no new call; if it stays, the next decision or probe finds it.
        replica.health.forget(self.models.versions(unit))
        until = time.monotonic() + DRAIN_SECONDS
        while self.models.in_flight(unit):
            if time.monotonic() >= until:
                raise NoRoom(f"The model {needed_by!r} waits for images of {unit!r} in flight; try again later.")
            await asyncio.sleep(POLL_SECONDS)
        log.info("demand_unloaded", triton=replica.address, model=unit)
        replica.health.forget(await replica.unload(unit))
        metrics.MODEL_EVICTIONS.inc()

    async def _unload_steps(self, replica: Replica, unit: str) -> None:
        """Unload the remains of a failed load: the steps of a model that no other model needs."""
        ready = in_state(await replica.endpoint.index(), READY)
        for step in sorted(ready & self.models.own_steps(unit)):
            await replica.endpoint.unload(step)


def _no_model_for_clients(name: str) -> ModelNotFound:
    return ModelNotFound(
        f"{name!r} is in Triton's repository, but is no model that classifies images; GET /models lists those."
    )
