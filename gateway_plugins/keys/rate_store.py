"""Rates that a fleet of gateways shares, in Redis or Valkey. While it is away, each gateway applies the whole rate."""

import asyncio
import time
from collections.abc import Callable

import structlog
from redis import ConnectionError as ConnectionClosed
from redis import RedisError
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from gateway_plugins.keys import metrics
from gateway_plugins.keys.quota import Rate
from gateway_plugins.keys.rates import TOLERANCE_SECONDS, Grant, Rates, granted

log = structlog.get_logger("gateway")

TIMEOUT_SECONDS = 0.25
"""Longest time of one request to the store; then the local rate applies."""
RETRY_SECONDS = 1.0
"""After a failure the store is not asked for this long."""
CONNECTIONS = 16
"""Connections of one process, and so requests at once; the others wait within TIMEOUT_SECONDS."""
PREFIX = "triton-image-gateway:rate:"
FAILURES = (RedisError, OSError, TimeoutError)
"""What a request to the store fails with."""
LONGEST_SECONDS = 1e16
"""A longer time is invalid: a full burst of the slowest rate that can be written takes 3.6e15 s."""

# gateway_plugins.keys.rates.take, by the clock of the store. The state has the time at which it was written, too: if
# the clock was set back since, what is not paid back must not wait for the difference. Numbers are answered as text, as
# Redis cuts those of Lua to integers.
_TAKE = """
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local interval, full, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local paid, written = string.match(redis.call('GET', KEYS[1]) or '0 0', '^(%S+) (%S+)$')
paid, written = tonumber(paid or 0), tonumber(written or 0)
local ahead = math.max(paid - math.max(now, written), 0) + interval
local wait = ahead - full
if wait <= 1e-6 then wait = 0 end
local admitted = 0
if wait <= most then
  admitted = 1
  redis.call('SET', KEYS[1], string.format('%.6f %.6f', now + ahead, now), 'PX', math.ceil(ahead * 1000) + 1000)
else
  ahead = ahead - interval
end
return {admitted, tostring(wait), tostring(ahead)}
"""


class InvalidReply(RedisError):
    """The store has answered what the script cannot have returned."""


def reason_of(error: Exception) -> str:
    """Why a request to the store failed, without its password."""
    return str(error) or type(error).__name__


class StoredRates:
    """Takes images of rates in the store, or of `local` while the store does not answer within TIMEOUT_SECONDS."""

    def __init__(self, url: str, local: Rates, now: Callable[[], float] = time.monotonic) -> None:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=CONNECTIONS,
            timeout=TIMEOUT_SECONDS,
            socket_timeout=TIMEOUT_SECONDS,
            socket_connect_timeout=TIMEOUT_SECONDS,
            # The store may have closed a connection of the pool, by a restart.
            retry=Retry(NoBackoff(), 1, (ConnectionClosed,)),
        )
        self._client = Redis.from_pool(pool)
        self._take = self._client.register_script(_TAKE)
        self._local = local
        self._now = now
        self._lost = False
        self._retry_at = 0.0

    async def take(self, name: str, rate: Rate, most_seconds: float) -> Grant:
        """See gateway_plugins.keys.rates.Rates; never raises."""
        if self._lost and self._now() < self._retry_at:
            return await self._local.take(name, rate, most_seconds)
        # While the store is away, one request a second tries it.
        self._retry_at = self._now() + RETRY_SECONDS
        try:
            grant = await self.ask(name, rate, most_seconds)
        except FAILURES as error:
            self._lose(error)
            return await self._local.take(name, rate, most_seconds)
        self._find()
        return grant

    async def ask(self, name: str, rate: Rate, most_seconds: float) -> Grant:
        """Take an image of a key's rate in the store; raises one of FAILURES."""
        limits = [1 / rate.per_second, rate.full_seconds, most_seconds]
        async with asyncio.timeout(TIMEOUT_SECONDS):
            reply = await self._take([PREFIX + name], limits)
        admitted, wait, ahead = _read(reply, most_seconds)
        return granted(rate, ahead, wait, admitted=admitted)

    def forget(self, name: str) -> None:
        """See gateway_plugins.keys.rates.Rates; in the store, states expire."""
        self._local.forget(name)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def _lose(self, error: Exception) -> None:
        metrics.RATE_STORE_FAILURES.inc()
        self._retry_at = self._now() + RETRY_SECONDS
        if not self._lost:
            self._lost = True
            metrics.RATE_STORE_UP.set(0)
            log.warning("rate_store_lost", reason=reason_of(error))

    def _find(self) -> None:
        if self._lost:
            self._lost = False
            metrics.RATE_STORE_UP.set(1)
            log.info("rate_store_back")


def _read(reply: object, most_seconds: float) -> tuple[bool, float, float]:
    """Whether an image is admitted, its wait and the new state of the rate in seconds; raises InvalidReply."""
    match reply:
        case [0 | 1 as admitted, str() | bytes() as wait_text, str() | bytes() as ahead_text]:
            pass
        case _:
            raise InvalidReply("it answered something else than a number and two texts")
    try:
        wait, ahead = float(wait_text), float(ahead_text)
    except ValueError as exc:
        raise InvalidReply("it answered a time that is not a number") from exc
    # Comparisons with NaN are false. Lua writes 14 digits of a wait, so an admitted one may be rounded up.
    most = min(most_seconds + TOLERANCE_SECONDS, LONGEST_SECONDS) if admitted else LONGEST_SECONDS
    if not (0 <= wait <= most and 0 <= ahead <= LONGEST_SECONDS):
        raise InvalidReply("it answered a time that is out of range")
    return bool(admitted), wait, ahead
