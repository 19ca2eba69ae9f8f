"""Bounds of what clients hold, leases of a part of a bound, pools, and leases for which clients take turns.

One rule for pools (bytes of uploads, bytes of responses, streams): when one is full, the idle client with the highest
eviction score is evicted. If the client that needs space has a higher score still, its request is refused instead.
"""

import asyncio
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Self, TypeVar

from prometheus_client import Counter, Gauge

from gateway import metrics
from gateway.errors import Overloaded
from gateway.values.quantities import size


class Bound:
    """A limit for all clients together, and the amount in use.

    `name` is the setting's name; the gauges show both figures.
    """

    __slots__ = ("_gauge", "held", "most", "name")

    def __init__(self, name: str, most: int, gauge: Gauge | None = None, most_gauge: Gauge | None = None) -> None:
        self.name, self.most, self.held = name, most, 0
        self._gauge = gauge
        if most_gauge is not None:
            most_gauge.set(most)

    @property
    def free(self) -> int:
        """How much is not held."""
        return self.most - self.held

    def add(self, amount: int) -> None:
        """Add `amount`, which may be negative."""
        self.held += amount
        if self._gauge is not None:
            self._gauge.inc(amount)

    def full(self, message: str) -> Overloaded:
        """The error for a client that does not get what it needs; {} in the message is the most."""
        most = size(self.most) if self.name.startswith("max_bytes_") else f"{self.most:,}"
        return Overloaded(message.format(most), limit=self.name, value=self.most)


def _nothing() -> None:
    """Do nothing."""


class Lease:
    """The amounts of some bounds that one client holds until the lease is released, or its context ends.

    Uncancellable work keeps it, even if it is released meanwhile, until the work has ended. `freed` is called when it
    gives everything back. A subclass that counts otherwise sets `_kept` and `_released` itself, to False.
    """

    __slots__ = ("_freed", "_held", "_kept", "_released")

    def __init__(self, bounds: Sequence[Bound], amounts: Sequence[int], freed: Callable[[], None] = _nothing) -> None:
        self._held = list(zip(bounds, amounts, strict=True))
        self._freed = freed
        self._kept = self._released = False
        for bound, amount in self._held:
            bound.add(amount)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def keep(self) -> None:
        """Begin work that cannot be cancelled: everything is held until `settle`, even if it is released before."""
        self._kept = True

    def settle(self) -> None:
        """End such work."""
        self._kept = False
        if self._released:
            self._end()

    def release(self) -> None:
        """Give everything back, as soon as no uncancellable work runs; a second call does nothing."""
        self._released = True
        if not self._kept:
            self._end()

    def _end(self) -> None:
        """Give everything back, unless that was done before."""
        held, self._held = self._held, []
        for bound, amount in held:
            bound.add(-amount)
        if held:
            self._freed()


L = TypeVar("L", bound=Lease)


async def admission(admitted: "asyncio.Future[L]", leave: Callable[[], None]) -> L:
    """The lease of a client that waits for one.

    If the wait is cancelled, the lease is released if it was already admitted, else `leave` is called.
    """
    try:
        return await admitted
    except asyncio.CancelledError:
        if admitted.done() and not admitted.cancelled() and admitted.exception() is None:
            admitted.result().release()
        else:
            leave()
        raise


Requests = dict[Hashable, deque[tuple[Sequence[int], asyncio.Future[Lease]]]]
"""The waiting images of each request of one client."""


class RoundRobin:
    """Some bounds, of which each image holds a lease.

    Waiting images are served round-robin by client, and for each client by request: neither a request with many
    images nor a client with many requests delays the others.
    """

    def __init__(self, *bounds: Bound) -> None:
        self.bounds = bounds
        self._waiting: dict[Hashable, Requests] = {}
        self._offers: dict[Callable[[], None], None] = {}

    @asynccontextmanager
    async def lease(self, request: Hashable, *amounts: int, client: Hashable = None) -> AsyncIterator[None]:
        """Hold `amounts` of the bounds, one of each, for an image of a request."""
        with await self.acquire(request, *amounts, client=client):
            yield

    async def acquire(self, request: Hashable, *amounts: int, client: Hashable = None) -> Lease:
        """A lease of `amounts` of the bounds, one of each, for an image of a request."""
        admitted: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, {}).setdefault(request, deque()).append((amounts, admitted))
        self._admit()
        self._take_offers()
        return await admission(admitted, self._admit)  # smaller images may wait behind one that gives up

    def offer(self, give_up: Callable[[], None]) -> None:
        """Call `give_up`, which releases a lease, as soon as an image waits, possibly now."""
        self._offers[give_up] = None
        self._take_offers()

    def withdraw(self, give_up: Callable[[], None]) -> None:
        """Cancel an offer."""
        self._offers.pop(give_up, None)

    def _take_offers(self) -> None:
        while self._waiting and self._offers:
            give_up = next(iter(self._offers))
            del self._offers[give_up]
            give_up()

    def _admit(self) -> None:
        while self._waiting:
            requests = next(iter(self._waiting.values()))
            amounts, admitted = next(iter(requests.values()))[0]
            if not admitted.done():
                if any(amount > bound.free for bound, amount in zip(self.bounds, amounts, strict=True)):
                    return
                admitted.set_result(Lease(self.bounds, amounts, self._admit))
            self._remove_first()

    def _remove_first(self) -> None:
        """Remove the first waiter; its client and its request move to the end of the round."""
        client, requests = next(iter(self._waiting.items()))
        request, waiters = next(iter(requests.items()))
        del self._waiting[client], requests[request]
        waiters.popleft()
        if waiters:
            requests[request] = waiters
        if requests:
            self._waiting[client] = requests


MIN_UPLOAD_BYTES_PER_SECOND = 8 * 2**10
"""Lowest speed of an upload."""
RECENT_SECONDS = 5.0
"""Time constant of the speed: bytes that arrived this long ago have a weight of 1/e."""
_LEAST_SECONDS = 0.1
"""Shortest time over which a speed is measured: a client is not judged by its first bytes."""


class Pace:
    """The speed of one upload. Only the time in which the gateway waits for the client counts.

    A client has `grace_seconds` to spare. Waiting uses them up, and each byte restores 1 / `min_bytes_per_second`
    seconds: a client may pause, but not be slower for long. `now` is a clock in seconds.
    """

    def __init__(self, *, min_bytes_per_second: float, grace_seconds: float, now: Callable[[], float]) -> None:
        self._least = min_bytes_per_second
        self._grace_seconds = self._spare_seconds = grace_seconds
        self._now = now
        self.waiting_since: float | None = None
        """Since when the gateway waits for the client; None if it does not."""
        self._recent_bytes = 0.0  # weighted: the newest by 1, older ones by less
        self._waited_seconds = 0.0

    @property
    def spare_seconds(self) -> float:
        """How long the gateway may wait for the next byte before the client is too slow."""
        return self._spare_seconds - self._waiting_seconds

    @property
    def is_idle(self) -> bool:
        """Whether the gateway waits for the client."""
        return self.waiting_since is not None

    @property
    def bytes_per_second(self) -> float:
        """Recent upload speed in bytes/s, exponentially weighted."""
        waiting_seconds = self._waiting_seconds
        age_seconds = max(self._waited_seconds + waiting_seconds, _LEAST_SECONDS)
        weight = RECENT_SECONDS * -math.expm1(-age_seconds / RECENT_SECONDS)
        return self._recent_bytes * math.exp(-waiting_seconds / RECENT_SECONDS) / weight

    @property
    def is_slow(self) -> bool:
        """Whether it is slower than `min_bytes_per_second`."""
        return self.bytes_per_second < self._least

    def wait(self) -> float:
        """Begin to wait for the client; returns `spare_seconds`."""
        self.waiting_since = self._now()
        return self._spare_seconds

    def receive(self, nbytes: int) -> None:
        """The client has sent `nbytes`: stop waiting."""
        seconds = 0.0
        if self.waiting_since is not None:
            seconds, self.waiting_since = self._now() - self.waiting_since, None
            self._waited_seconds += seconds
            self._recent_bytes *= math.exp(-seconds / RECENT_SECONDS)
        self._recent_bytes += nbytes
        self._spare_seconds = min(self._grace_seconds, self._spare_seconds - seconds + nbytes / self._least)

    @property
    def _waiting_seconds(self) -> float:
        return 0.0 if self.waiting_since is None else self._now() - self.waiting_since


IDLE_SECONDS = 1.0
"""A client that has not read, and has not sent a request or a frame, for this long is idle."""


class PoolClient:
    """The eviction rule's view of a client that sends a body.

    Its score is the time that it needs, at its speed, to send what it holds. One without `pace` is never evicted, and
    no other one is evicted for it.
    """

    pace: Pace | None = None

    @property
    def is_idle(self) -> bool:
        """Whether the gateway waits for this client; others are never evicted."""
        return self.pace is not None and self.pace.is_idle

    def eviction_score(self, held: int) -> float:
        """The idle client with the highest score is evicted first; `held` is how much it holds of the pool."""
        return math.inf if self.pace is None else held / max(self.pace.bytes_per_second, 1.0)

    def evict(self, error: Overloaded) -> None:
        """End this client's work with an error; it then holds nothing."""


NEVER_EVICTED = PoolClient()


class WaitingClient(PoolClient, ABC):
    """A client that reads, or sends messages: its score is the time for which it has done neither."""

    @property
    @abstractmethod
    def idle_seconds(self) -> float:
        """For how long the gateway has waited for this client; 0 if it does not wait."""

    @property
    def is_idle(self) -> bool:
        """Whether the gateway has waited for IDLE_SECONDS."""
        return self.idle_seconds >= IDLE_SECONDS

    def eviction_score(self, held: int) -> float:  # noqa: ARG002  # the amount does not matter
        """Seconds for which the gateway has waited."""
        return self.idle_seconds


class PoolLease:
    """How much one client holds of a pool, and of the bound of its API key, if there is one."""

    __slots__ = ("_key_bound", "_pool", "client", "held")

    def __init__(self, pool: "Pool", client: PoolClient, key_bound: Bound | None = None) -> None:
        self._pool = pool
        self._key_bound = key_bound
        self.client = client
        self.held = 0
        """How much the client holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def hold(self, amount: int) -> None:
        """Set how much the client holds; raises Overloaded if the pool is full and no other client is evicted.

        If the bound of its key is reached, no other client is evicted.
        """
        more = amount - self.held
        if not more:
            return
        pool, key_bound, bound = self._pool, self._key_bound, self._pool.bound
        if key_bound is not None and more > max(key_bound.free, 0):
            raise key_bound.full("The uploads of this key that wait have {} bytes, its share; retry later.")
        if more > 0 and more > bound.most - bound.held:
            pool._make_room(self, amount)
        self.held = amount
        bound.add(more)
        if key_bound is not None:
            key_bound.add(more)
        if amount:
            pool._leases[self] = None
        else:
            del pool._leases[self]

    def grow(self, amount: int) -> None:
        """Hold `amount` more, which may be negative; raises Overloaded."""
        self.hold(max(self.held + amount, 0))

    def release(self) -> None:
        """Give everything back; a second call does nothing."""
        if self.held:
            self.hold(0)
        self.client = NEVER_EVICTED  # it may refer to the lease, and full garbage collections are long


class Pool:
    """At most `bound.most` of something, of which clients hold leases.

    With `one_may_exceed`, a client may hold more than that while no other client holds anything.
    """

    def __init__(
        self, bound: Bound, evicted: Counter, *, refusal: str, eviction: str = "", one_may_exceed: bool = False
    ) -> None:
        self.bound = bound
        self._evicted = evicted
        self._refusal, self._eviction = refusal, eviction or refusal
        self._one_may_exceed = one_may_exceed
        self._leases: dict[PoolLease, None] = {}

    def lease(self, client: PoolClient, amount: int = 0, *, key_bound: Bound | None = None) -> PoolLease:
        """A lease of `amount`, counted in `key_bound` too; raises Overloaded as `hold` does."""
        lease = PoolLease(self, client, key_bound)
        if amount:
            lease.hold(amount)
        return lease

    def check(self) -> None:
        """Raise Overloaded unless one more could be held."""
        if self.bound.free < 1 and not any(lease.client.is_idle for lease in self._leases):
            raise self.full()

    def full(self) -> Overloaded:
        """The error for a client that is refused."""
        return self.bound.full(self._refusal)

    def _make_room(self, asking: PoolLease, amount: int) -> None:
        """Evict clients until `asking` can hold `amount`; raises Overloaded."""
        bound, more = self.bound, amount - asking.held
        while bound.free < more and not (self._one_may_exceed and bound.held == asking.held):
            idle = [lease for lease in self._leases if lease is not asking and lease.client.is_idle]
            first = max(idle, key=lambda lease: lease.client.eviction_score(lease.held), default=None)
            if first is None or first.client.eviction_score(first.held) <= asking.client.eviction_score(amount):
                raise self.full()
            self._evicted.inc()
            client = first.client
            first.release()
            client.evict(bound.full(self._eviction))


def upload_buffer(max_bytes: int) -> Pool:
    """The bytes of uploads that arrive or wait. When full, evicts the upload with the most held bytes per byte/s.

    Large, slow uploads are evicted first, and new ones last. One that is complete and waits for a permit is kept.
    """
    return Pool(
        Bound("max_bytes_waiting", max_bytes, metrics.BYTES_WAITING, metrics.BYTES_WAITING_LIMIT),
        metrics.UPLOADS_DISPLACED,
        refusal="The upload buffer is full ({}), and this upload was the slowest; retry later.",
    )


def response_buffer(max_bytes: int) -> Pool:
    """The bytes of responses that are built or not read yet. When full, the longest unread connection closes."""
    return Pool(
        Bound("max_bytes_unread", max_bytes, metrics.ANSWER_BYTES, metrics.ANSWER_BYTES_LIMIT),
        metrics.CONNECTIONS_CLOSED.labels("unread"),
        refusal="The response buffer is full ({}), and every client reads; retry later.",
        one_may_exceed=True,
    )


def streams(most: int) -> Pool:
    """The open streams. When full, ends the stream without a frame for longest."""
    return Pool(
        Bound("max_streams", most, metrics.STREAMS, metrics.STREAMS_LIMIT),
        metrics.STREAMS_STOPPED.labels("displaced"),
        refusal="Too many streams are open: the limit max_streams is {}; try again later.",
        eviction="Another stream needs the slot of this one: the limit max_streams is {}, and this stream has had no "
        "frame for longest. Open a stream again when there are frames.",
    )
