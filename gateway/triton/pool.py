"""The pool of Triton servers that a gateway process uses: resolved, probed, chosen for calls, and removed."""

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import structlog

from gateway import metrics
from gateway.values.rollout import Rollout, newest

if TYPE_CHECKING:
    from gateway.triton.client import TritonEndpoint
    from gateway.triton.replica import Replica


def least_loaded(replicas: "Sequence[Replica]") -> "Replica":
    """The one of two random replicas with fewer images in flight.

    Two choices are nearly as good as comparing all replicas, and independent gateways do not all choose the same one
    (Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, 1996).
    """
    if len(replicas) == 1:
        return replicas[0]
    first, second = random.sample(replicas, 2)
    return first if first.images <= second.images else second


def rendezvous_order(addresses: Iterable[str], key: str) -> list[str]:
    """The addresses in a stable order of each key (rendezvous hashing): every gateway has the same first one.

    An address that is removed is replaced by the next in order; keys with another first address keep it.
    """
    return sorted(addresses, key=lambda address: hashlib.blake2b(f"{key}|{address}".encode()).digest())


MakeReplica = Callable[[str, Callable[[str], None]], "Replica"]
"""Makes the replica at an address host:port, whose health checker is not started yet.

The function is called with a model whose readiness or rollout may have changed."""

log = structlog.get_logger("gateway")

RETIREMENT_SECONDS = 60.0
"""How long a Triton that is no longer used may finish its calls."""


class TritonPool:
    """The Triton servers at some addresses, each with a health checker. `start` it inside its event loop.

    `find_addresses` returns the present addresses, host:port; it is called every `interval_seconds`.
    """

    def __init__(
        self,
        find_addresses: Callable[[], Awaitable[list[str]]],
        make_replica: MakeReplica,
        interval_seconds: float,
    ) -> None:
        self._find_addresses, self._make_replica = find_addresses, make_replica
        self._interval_seconds = interval_seconds
        self._wanted: set[str] = set()
        """Models that `want` has named."""
        self.in_use: dict[str, Replica] = {}
        """The Triton servers in use, by address."""
        self.rollouts: dict[str, Rollout] = {}
        """Which versions of a model answer; the last change where the Triton servers do not agree yet."""
        self._resolving: asyncio.Task[None] | None = None
        self._retiring: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Connect and start the health checkers; an unreachable Triton is retried and not an error."""
        await self.resolve()
        self._resolving = asyncio.create_task(self._keep_resolving())

    async def close(self) -> None:
        """Stop the health checkers and close every channel; calls in flight are cancelled."""
        replicas = list(self.in_use.values())
        tasks = [task for task in (self._resolving, *(replica.task for replica in replicas), *self._retiring) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(replica.endpoint.close() for replica in replicas))

    @property
    def replicas(self) -> "list[Replica]":
        """The replicas in use."""
        return list(self.in_use.values())

    def choose(self, model_name: str, model_version: str = "") -> "Replica":
        """A replica that is ready for a model; if there is none, any, whose error is reported."""
        if len(self.in_use) == 1:
            return next(iter(self.in_use.values()))
        return least_loaded(self.ready(model_name, model_version) or self.serving(model_name, model_version))

    def candidates(self, model_name: str, model_version: str = "") -> "list[Replica]":
        """The replicas that may keep the state of a model's sequences.

        They are ready for the model; if none is, they are the ones that are not, whose error is reported. Replicas
        that were not probed yet are included, since a gateway that has just started does not know which are ready.
        """
        known = self.ready(model_name, model_version) or self.serving(model_name, model_version)
        return [replica for replica in self.replicas if replica in known or not replica.health.probed]

    def ready(self, model_name: str, model_version: str, excluded: Collection[str] = ()) -> "list[Replica]":
        """The replicas that are ready for a model, except the addresses in `excluded`."""
        return [
            replica
            for replica in self.serving(model_name, model_version)
            if replica.address not in excluded and replica.health.answers(model_name, model_version)
        ]

    def serving(self, model_name: str, model_version: str) -> "list[Replica]":
        """The replicas that probe a model, ready or not; all if none does."""
        if len(self.in_use) == 1:
            return list(self.in_use.values())
        return self.holders(model_name, model_version) or self.replicas

    def holders(self, model_name: str, model_version: str = "") -> "list[Replica]":
        """The replicas that probe a model, ready or not; none if none does."""
        return [replica for replica in self.replicas if replica.health.serving(model_name, model_version)]

    async def follow(self) -> None:
        """Read now which versions of each model answer."""
        await asyncio.gather(*(replica.checker.follow() for replica in self.replicas))

    def want(self, name: str) -> None:
        """Have a model loaded by every Triton from now on, as if `load` had named it."""
        self._wanted.add(name)
        for replica in self.replicas:
            replica.health.expected.load.add(name)

    def may_become_ready(self, model_name: str, model_version: str, without: "Replica") -> bool:
        """Whether a model that one Triton does not have is temporarily missing at another."""
        others = (replica.health for replica in self.replicas if replica is not without)
        return any(
            health.lacks(model_name, model_version)
            or (health.serving(model_name, model_version) and not health.answers(model_name, model_version))
            for health in others
        )

    async def resolve(self) -> None:
        """Resolve the addresses, and add and remove replicas accordingly."""
        addresses = await self._find_addresses()
        for address in addresses:
            if address not in self.in_use:
                self.in_use[address] = self._join(address)
        for address in set(self.in_use) - set(addresses):
            self._leave(address)

    async def _keep_resolving(self) -> None:
        while True:
            await asyncio.sleep(self._interval_seconds)
            try:
                await self.resolve()
            except Exception:
                metrics.WATCH_FAULTS.inc()
                log.exception("watch_fault", triton="")

    def _join(self, address: str) -> "Replica":
        replica = self._make_replica(address, self._report_model)
        for name in self._wanted:
            replica.health.expected.load.add(name)
        replica.task = asyncio.create_task(replica.checker.run())
        return replica

    def _leave(self, address: str) -> None:
        replica = self.in_use.pop(address)
        if replica.task is not None:
            replica.task.cancel()
        replica.checker.forget_metrics()
        for model in {*self.rollouts, *replica.health.models}:
            self._report_model(model)
        retirement = asyncio.create_task(_retire(replica.endpoint))
        self._retiring.add(retirement)
        retirement.add_done_callback(self._retiring.discard)

    def _report_model(self, model: str) -> None:
        """Update the metrics that show whether any Triton is ready for a model, and which of its versions answer."""
        serving = [replica.health for replica in self.in_use.values() if replica.health.serving(model)]
        known = [replica.health.expected.rollouts.get(model) for replica in self.in_use.values()]
        before, rollout = self.rollouts.get(model), newest(each for each in known if each is not None)
        if serving:
            metrics.MODEL_READY.labels(model).set(any(health.answers(model) for health in serving))
        elif rollout == before:
            metrics.forget(metrics.MODEL_READY, model)
        if rollout == before:
            return
        metrics.show_rollout(model, before, rollout)
        if rollout is None:
            del self.rollouts[model]
            return
        self.rollouts[model] = rollout
        since = rollout.since and rollout.since.isoformat()
        log.info("rollout", model=model, shares=rollout.shares, shadow=rollout.shadow, since=since, by=rollout.by)


async def _retire(endpoint: "TritonEndpoint") -> None:
    try:
        await asyncio.sleep(RETIREMENT_SECONDS)
    finally:
        await endpoint.close()
