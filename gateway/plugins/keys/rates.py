"""Rates of images by key, counted by `limits` in this process or in a store.

A rate has a sliding window. Each key has two counts: of the images in this window, and in the one before, which counts
in proportion to its overlap with the window that ends now. So N images may come in a burst, and N in each window over a
longer time. A day or a month of UTC has one count.
"""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import structlog
from limits import RateLimitItemPerSecond
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from gateway.plugins.keys import metrics
from gateway.plugins.keys.quota import Period, Rate, Window
from gateway.plugins.keys.settings import STORE_CLIENT
from gateway.settings import variable
from gateway.values.extras import require

log = structlog.get_logger("gateway")

TIMEOUT_SECONDS = 0.25
"""Longest time of one request to the store; then this process counts."""
RETRY_SECONDS = 1.0
"""Time after a failure during which the store gets no requests."""
CONNECTIONS = 16
"""Connections of one process, and so concurrent requests; the others wait within TIMEOUT_SECONDS."""
PREFIX = "triton-image-gateway"
KEPT_SECONDS = 3_600
"""A count stays this long after its period, for machines whose clocks are behind."""

T = TypeVar("T")


class Grant(NamedTuple):
    """The result of a request for an image of a rate."""

    admitted: bool
    remaining: int
    """Images that may pass now, after this one."""
    next_seconds: float
    """Time until one more may pass."""


class Counter:
    """Counts images in one storage."""

    def __init__(self, storage: MemoryStorage | RedisStorage) -> None:
        self._storage = storage
        self._limiter = SlidingWindowCounterRateLimiter(storage)

    async def take(self, name: str, rate: Rate) -> Grant:
        """Take an image of a key's rate, if it may pass now."""
        item = RateLimitItemPerSecond(rate.images, rate.seconds)
        admitted = await self._limiter.hit(item, name)
        # Not `get_window_stats`: it gives the time until the count of a window changes, and 0 just after it has begun.
        before, before_seconds, now, now_seconds = await self._storage.get_sliding_window(
            item.key_for(name), rate.seconds
        )
        free = rate.images - now
        remaining = max(free - math.floor(before * before_seconds / rate.seconds), 0)
        if remaining:
            return Grant(admitted, remaining, 0.0)
        # The previous window's images free one by one; this window's begin to when it ends.
        next_seconds = before_seconds - free * rate.seconds / before if free > 0 else now_seconds - rate.seconds
        return Grant(admitted, 0, max(next_seconds, 0.0))

    async def count(self, name: str, period: Period, window: Window) -> int:
        """Add an image of a key to a day or month; returns how many it has then."""
        key = f"{name}/{period}/{window.begins:%Y-%m-%d}"
        return await self._storage.incr(key, window.left_seconds + KEPT_SECONDS)


class Store(Counter):
    """Counts in a Redis or Valkey, whose methods raise one of `failures`.

    Raises ExtraMissing without a client for it.
    """

    def __init__(self, url: str) -> None:
        require(variable("rate_store_url"), "fleet", STORE_CLIENT)
        # An optional dependency.
        from redis import ConnectionError as ConnectionClosed
        from redis import RedisError
        from redis.asyncio import BlockingConnectionPool
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        self.failures = (RedisError, OSError, TimeoutError, ValueError)
        """ValueError: the store has something else under a key."""
        self._pool = BlockingConnectionPool.from_url(
            url,
            max_connections=CONNECTIONS,
            timeout=TIMEOUT_SECONDS,
            socket_timeout=TIMEOUT_SECONDS,
            socket_connect_timeout=TIMEOUT_SECONDS,
            # The store may have closed a connection of the pool, by a restart.
            retry=Retry(NoBackoff(), 1, (ConnectionClosed,)),
        )
        options: dict[str, Any] = {"connection_pool": self._pool}  # its type says that options are numbers and texts
        super().__init__(RedisStorage("redis://", implementation="redispy", key_prefix=PREFIX, **options))

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.aclose()


class Rates:
    """Counts in this process, or in the store of a URL while it answers within TIMEOUT_SECONDS.

    Raises ExtraMissing if there is a URL, and no client for it.
    """

    def __init__(self, url: str | None, now: Callable[[], float] = time.monotonic) -> None:
        # One storage for each key: for each image, a MemoryStorage scans all of its entries for expired ones.
        self._local: defaultdict[str, Counter] = defaultdict(lambda: Counter(MemoryStorage()))
        self._store = None if url is None else Store(url)
        self._now = now
        self._lost = False
        self._retry_at = 0.0

    async def take(self, name: str, rate: Rate) -> Grant:
        """Take an image of a key's rate, if it may pass now; never raises."""
        return await self._ask(name, lambda counter: counter.take(name, rate))

    async def count(self, name: str, period: Period, window: Window) -> int:
        """See Counter; never raises."""
        return await self._ask(name, lambda counter: counter.count(name, period, window))

    async def _ask(self, name: str, ask: Callable[[Counter], Awaitable[T]]) -> T:
        if self._store is None or (self._lost and self._now() < self._retry_at):
            return await ask(self._local[name])
        # While the store is away, one request a second tries it.
        self._retry_at = self._now() + RETRY_SECONDS
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                answer = await ask(self._store)
        except self._store.failures as error:
            self._retry_at = self._now() + RETRY_SECONDS
            if not self._lost:
                self._lost = True
                metrics.RATE_STORE_UP.set(0)
                log.warning("rate_store_lost", reason=str(error) or type(error).__name__)
            return await ask(self._local[name])
        if self._lost:
            self._lost = False
            metrics.RATE_STORE_UP.set(1)
            log.info("rate_store_back")
        return answer

    async def close(self) -> None:
        """Close the connections."""
        if self._store is not None:
            await self._store.close()
