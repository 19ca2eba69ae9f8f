"""Requests wait here until their models are loaded; and the Tritons are followed.

Nothing here is needed for a correct answer: a call whose model another gateway has just unloaded loads it again. So the
gateways that share a Triton need no common state but what Triton knows: which models are loaded, and how often each has
answered.

    inventory.py   what the Tritons have: names, steps, memory, use
    choice.py      which models to unload for another one
    room.py        unloads them, within the budget of a Triton
    loads.py       loads a model on a Triton
    this module    the wait of requests
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass

import anyio
import structlog

from gateway.deadline import Deadline
from gateway.errors import DeadlineExceeded, GatewayError, ModelUnavailable
from gateway.inference.model_info import LoadTimes
from gateway.limits.lease import Bound
from gateway.metrics import WATCH_FAULTS, series
from gateway.triton.health.expected import READY
from gateway.triton.pool import TritonPool
from gateway.triton.replica import Replica
from gateway_plugins.demand import metrics
from gateway_plugins.demand.choice import Budget, Claim
from gateway_plugins.demand.inventory import Inventory, in_state, versions_of
from gateway_plugins.demand.loads import Loads
from gateway_plugins.demand.memory import ModelDescriptions
from gateway_plugins.demand.room import NoRoom, RoomMaker
from gateway_plugins.demand.usage import Usage
from gateway_plugins.shared.files import machine_lock

log = structlog.get_logger("gateway")

REFRESH_SECONDS = 5.0
"""Interval at which the models of each Triton and their use are read, and a busy model may be loaded on another one."""
ROOM_SECONDS = 0.1
"""Interval at which a request that found no idle model to unload looks again."""
PATIENCE_SECONDS = 1.0
"""After this long without an idle model, a busy one is drained and unloaded."""
RESERVED = 4
"""One in this many waits is for clients that have no image that waits, so that one client cannot take all."""


@dataclass(frozen=True, slots=True)
class LoadPolicy:
    """When models are loaded and unloaded; times are those of the settings of the same names."""

    budget: Budget
    load_seconds: float = 60.0
    kept_seconds: float = 10.0
    spread: bool = True
    """Whether a model with many images in flight is loaded on further Tritons."""
    max_waiting: int = 64
    """Images that may wait for models at once."""
    refresh_seconds: float = REFRESH_SECONDS


class DemandLoader:
    """Keeps the models of recent requests loaded; see ModelLoader.

    A model here is what clients name, with all its versions and steps. `fixed` are those that always stay loaded.
    """

    def __init__(
        self,
        pool: TritonPool,
        *,
        fixed: Collection[str],
        policy: LoadPolicy,
        descriptions: ModelDescriptions,
        clock: Callable[[], float] = time.monotonic,
        take_lock: Callable[[str], AbstractContextManager[bool]] = machine_lock,
    ) -> None:
        self._pool = pool
        self._policy = policy
        self._clock = clock
        self._inventory = Inventory(pool, descriptions, fixed=fixed, kept_seconds=policy.kept_seconds, clock=clock)
        self._room = RoomMaker(pool, self._inventory, policy.budget, take_lock)
        self._loads = Loads(pool, self._inventory, self._room)
        self._waiting = Bound("max_images_waiting", policy.max_waiting)
        self._waiting_of: Counter[str] = Counter()
        """The images of each client that wait."""
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow the Tritons; call this inside their event loop."""
        self._loop = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop; loads in progress are waited for, for a limited time."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        await self._loads.close()

    @property
    def load_seconds(self) -> float:
        """Longest time that a request waits for a model."""
        return self._policy.load_seconds

    def is_fixed(self, model_name: str) -> bool:
        """Whether a model always stays loaded, so that it is left to recovery."""
        return model_name in self._inventory.fixed

    def is_loading(self, model_name: str, address: str) -> bool:
        """Whether this gateway has a Triton load a model at this moment."""
        return model_name in self._inventory.loading[address]

    def not_fixed(self) -> list[str]:
        """The models that requests load, loaded or not, as far as they are known."""
        return self._inventory.not_fixed(self._loads.refused)

    def load_times(self, model_name: str) -> LoadTimes | None:
        """What the loads of a model have taken; None if this process has not loaded it."""
        return self._inventory.load_times(model_name)

    async def loaded(
        self,
        model_name: str,
        model_version: str,  # noqa: ARG002  # all versions of a model are loaded together
        deadline: Deadline,
        client: str = "",
    ) -> None:
        """See ModelLoader.loaded."""
        if self.is_fixed(model_name):
            return
        unit = self._inventory.unit(model_name)
        holders = self._pool.holders(unit)
        elsewhere = self._elsewhere(holders)
        # If the only Triton is away, the call reports that, or is held.
        found = any(replica.health.reachable for replica in holders) or (bool(holders) and not elsewhere)
        series(metrics.MODEL_LOOKUPS, "loaded" if found else "not_loaded").inc()
        if not found:
            await self._wait(unit, deadline, elsewhere, client)
        self._inventory.usage(unit).request(self._clock(), client)

    async def load_again(self, model_name: str, deadline: Deadline) -> bool:
        """Load a model that a call did not find; False, without a load, if it is loaded where it should be."""
        unit = self._inventory.unit(model_name)
        for replica in self._pool.holders(unit):
            if unit in replica.health.recovering:
                return False
            if unit in in_state(await replica.endpoint.index(), READY):
                return False
            self._pool.forget(replica.address, versions_of(unit, self._inventory.listed))
        series(metrics.MODEL_LOOKUPS, "unloaded_meanwhile").inc()
        await self._wait(unit, deadline)
        return True

    async def load_elsewhere(self, model_name: str, deadline: Deadline) -> bool:
        """Load a model on a Triton that does not have it, since those that have are away; False if there is none."""
        unit = self._inventory.unit(model_name)
        if not (without := self._elsewhere(self._pool.holders(unit))):
            return False
        series(metrics.MODEL_LOOKUPS, "not_loaded").inc()
        await self._wait(unit, deadline, without)
        return True

    @contextmanager
    def call(self, model_name: str, images: int) -> Iterator[None]:
        """A call with this number of images: its model is in use."""
        # A name without a usage was never loaded, and a client may have made it up.
        usage = self._inventory.known_usage(self._inventory.unit(model_name)) or Usage()
        usage.enter(images)
        try:
            yield
        finally:
            usage.leave(images, self._clock())

    def forget_failure(self, model_name: str) -> None:
        """Load and describe a model again, since an administrator asks for it."""
        self._loads.forget_failure(model_name)
        self._inventory.forget(model_name)

    def _elsewhere(self, holders: Sequence[Replica]) -> set[str]:
        """The addresses of some Tritons, unless there is no other one."""
        addresses = {replica.address for replica in holders}
        return addresses if len(addresses) < len(self._pool.replicas) else set()

    async def _wait(self, unit: str, deadline: Deadline, but: Collection[str] = (), client: str = "") -> None:
        """Wait for the one load of a model, at none of the addresses `but`.

        The load goes on without the requests that have left.
        """
        left_seconds, most_seconds = deadline.left_seconds, self._policy.load_seconds
        patient_until = self._clock() + PATIENCE_SECONDS
        room: NoRoom | None = None
        with self._place(client), anyio.move_on_after(min(left_seconds, most_seconds)):
            while (error := await self._load(unit, but, client, patient_until)) is not None:
                if not isinstance(error, NoRoom):
                    raise error.with_traceback(None)  # else it would grow with each request that raises it
                room = error
                await asyncio.sleep(ROOM_SECONDS)
            return
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

    async def _load(self, unit: str, but: Collection[str], client: str, patient_until: float) -> GatewayError | None:
        replicas = [replica for replica in self._loads.order(unit) if replica.address not in but]
        return await self._loads.load(unit, replicas, Claim(busy_too=self._clock() >= patient_until, client=client))

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

    async def _run(self) -> None:
        """Follow the Tritons until cancelled."""
        while True:
            try:
                self._inventory.forget_gone(self._room.in_progress())
                self._room.forget_gone()
                for replica in self._pool.replicas:
                    with suppress(GatewayError):
                        await self._inventory.refresh(replica)
                        await self._room.keep_budget(replica)
                if self._policy.spread:
                    self._loads.spread()
            except Exception:
                WATCH_FAULTS.inc()
                log.exception("watch_fault", triton="")
            await asyncio.sleep(self._policy.refresh_seconds)
