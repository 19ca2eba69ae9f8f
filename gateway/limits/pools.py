"""Pools of buffered bytes and of streams, whose slow clients are evicted, and the speed of an upload."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Protocol, Self

from prometheus_client import Counter

from gateway import metrics
from gateway.errors import Overloaded
from gateway.limits.bounds import Bound

MIN_UPLOAD_BYTES_PER_SECOND = 8 * 2**10
"""Lowest speed of an upload."""
RECENT_SECONDS = 5.0
"""Time constant of the speed: bytes that arrived this long ago have a weight of 1/e."""
_LEAST_SECONDS = 0.1
"""Shortest time over which a speed is measured: a client is not judged by its first bytes."""


class Pace:
    """The speed of one upload, which ends if it is too slow. Only the time in which the gateway waits counts.

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
        """Begin to wait for the client; returns for how long, before it is too slow."""
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


class PoolClient(Protocol):
    """What the eviction rule asks about a client, and tells it."""

    @property
    def is_idle(self) -> bool:
        """Whether the gateway waits for this client; others are never evicted."""

    def eviction_score(self, held: int) -> float:
        """The idle client with the highest score is evicted first; `held` is how much it holds of the pool."""

    def evict(self, error: Overloaded) -> None:
        """End this client's work with an error; it then holds nothing."""


@dataclass(eq=False, slots=True)
class Uploader:
    """A client that sends bytes; its score is the seconds that it needs, at its speed, to send what it holds."""

    pace: Pace
    evict: Callable[[Overloaded], None]

    @property
    def is_idle(self) -> bool:
        """Whether the gateway waits for its bytes."""
        return self.pace.waiting_since is not None

    def eviction_score(self, held: int) -> float:
        """See PoolClient."""
        return held / max(self.pace.bytes_per_second, 1.0)


@dataclass(eq=False, slots=True)
class PoolLease:
    """How much one client holds of a pool, and of the bound of its API key, if there is one.

    Without a `client` the lease is never evicted, and no other one is evicted for it.
    """

    pool: "Pool"
    client: PoolClient | None = None
    key_bound: Bound | None = None
    held: int = field(init=False, default=0)
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
        pool, key_bound, bound = self.pool, self.key_bound, self.pool.bound
        if key_bound is not None and more > max(key_bound.free, 0):
            raise key_bound.full("The uploads of this key that wait have {} bytes, its share; retry later.")
        if more > 0 and more > bound.most - bound.held:
            pool.make_room(self, amount)
        self.held = amount
        bound.add(more)
        if key_bound is not None:
            key_bound.add(more)
        if amount:
            pool.leases[self] = None
        else:
            del pool.leases[self]

    def grow(self, amount: int) -> None:
        """Hold `amount` more, which may be negative; raises Overloaded."""
        self.hold(max(self.held + amount, 0))

    def release(self) -> None:
        """Give everything back; a second call does nothing."""
        if self.held:
            self.hold(0)
        self.client = None  # it may refer to the lease, and full garbage collections are long


class Pool:
    """At most `bound.most` of something, of which clients hold leases; at the limit, slow clients lose theirs first.

    The idle client with the highest eviction score is evicted. If the client that needs space has a higher score still,
    its request is refused instead.

    With `one_may_exceed`, a client may hold more than that while no other client holds anything.
    """

    def __init__(
        self, bound: Bound, evicted: Counter, *, refusal: str, eviction: str = "", one_may_exceed: bool = False
    ) -> None:
        self.bound = bound
        self._evicted = evicted
        self._refusal, self._eviction = refusal, eviction or refusal
        self._one_may_exceed = one_may_exceed
        self.leases: dict[PoolLease, None] = {}
        """The ones that hold something."""

    def lease(self, client: PoolClient | None = None, amount: int = 0, *, key_bound: Bound | None = None) -> PoolLease:
        """A lease of `amount`, counted in `key_bound` too; raises Overloaded as `hold` does."""
        lease = PoolLease(self, client, key_bound)
        if amount:
            lease.hold(amount)
        return lease

    def check(self) -> None:
        """Raise Overloaded unless one more could be held."""
        if self.bound.free < 1 and not self._idle():
            raise self.full()

    def make_room(self, asking: PoolLease, amount: int) -> None:
        """Evict clients until `asking` can hold `amount`; raises Overloaded."""
        bound, more = self.bound, amount - asking.held
        score = math.inf if asking.client is None else asking.client.eviction_score(amount)
        while bound.free < more and not (self._one_may_exceed and bound.held == asking.held):
            idle = [(client.eviction_score(lease.held), lease, client) for lease, client in self._idle()]
            first = max((each for each in idle if each[1] is not asking), key=itemgetter(0), default=None)
            if first is None or first[0] <= score:
                raise self.full()
            self._evicted.inc()
            _, lease, client = first
            lease.release()
            client.evict(bound.full(self._eviction))

    def full(self) -> Overloaded:
        """The error for a client that is refused."""
        return self.bound.full(self._refusal)

    def _idle(self) -> list[tuple[PoolLease, PoolClient]]:
        return [(each, each.client) for each in self.leases if each.client is not None and each.client.is_idle]


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
