"""How fast images of one key may come: rates by the generic cell rate algorithm (ITU-T I.371, annex A).

The state of a rate is one number: the time at which all that was taken is paid back. An image may pass `burst`
intervals before that. So a rate needs no timer and no history, and several processes can share it.
"""

import asyncio
import fcntl
import math
import os
import struct
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Protocol

from gateway.errors import UserError
from gateway.values.extras import install
from gateway_plugins.keys.quota import Rate

TOLERANCE_SECONDS = 1e-6
"""A shorter wait is none: the state is a sum of many intervals, and the store has microseconds."""
LOCK_ATTEMPTS, LOCK_PAUSE_SECONDS = 50, 0.001
_TIME = struct.Struct("<d")


class RateStoreUnavailable(UserError):
    """A store of rates is set, but its client is not installed."""


def require_client() -> None:
    """Raise RateStoreUnavailable unless gateway_plugins.keys.rate_store can be imported."""
    if find_spec("redis") is None:
        raise RateStoreUnavailable(
            f"GATEWAY_RATE_STORE_URL is set, but the package redis is not installed: {install('fleet')}, "
            "or unset the variable"
        )


class Grant(NamedTuple):
    """The result of a request for an image of a rate."""

    admitted: bool
    wait_seconds: float
    """Time after which the image may pass; if it is not admitted, after which another attempt may be."""
    remaining: int
    """Images that may pass now, after this one."""
    next_seconds: float
    """Time until one more may pass."""


def take(paid_at: float, rate: Rate, now: float, most_seconds: float) -> tuple[float, Grant]:
    """The new state after a request for an image, which may wait for `most_seconds`, and the result of the request."""
    interval = 1 / rate.per_second
    ahead = max(paid_at - now, 0.0) + interval
    wait = _positive(ahead - rate.full_seconds)
    admitted = wait <= most_seconds
    if not admitted:
        ahead -= interval
    return now + ahead, granted(rate, ahead, wait, admitted=admitted)


def granted(rate: Rate, ahead: float, wait_seconds: float, *, admitted: bool) -> Grant:
    """The result of a request after which the state of the rate is `ahead` seconds in the future."""
    free_seconds = rate.full_seconds - ahead
    remaining = max(math.floor((free_seconds + TOLERANCE_SECONDS) * rate.per_second), 0)
    return Grant(admitted, wait_seconds, remaining, _positive(1 / rate.per_second - free_seconds))


def _positive(seconds: float) -> float:
    return seconds if seconds > TOLERANCE_SECONDS else 0.0


class Rates(Protocol):
    """Where the state of the rates is."""

    async def take(self, name: str, rate: Rate, most_seconds: float) -> Grant:
        """Take an image of a key's rate, if it may pass within `most_seconds`."""

    def forget(self, name: str) -> None:
        """Drop the state of a key that was removed."""

    async def close(self) -> None:
        """Close what is open."""


class ProcessRates:
    """The state of one process."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._paid_at: dict[str, float] = {}

    async def take(self, name: str, rate: Rate, most_seconds: float) -> Grant:
        """See Rates."""
        self._paid_at[name], grant = take(self._paid_at.get(name, 0.0), rate, self._now(), most_seconds)
        return grant

    def forget(self, name: str) -> None:
        """See Rates."""
        self._paid_at.pop(name, None)

    async def close(self) -> None:
        """See Rates."""


class WorkerRates:
    """The state that all workers of one gateway share: a file of eight bytes for each key.

    The clock is the machine's monotonic one. Another worker has the lock for microseconds, unless it is stopped; after
    LOCK_ATTEMPTS an image is counted without it, and then some may not be counted.
    """

    def __init__(self, folder: Path, now: Callable[[], float] = time.monotonic) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._now = now

    async def take(self, name: str, rate: Rate, most_seconds: float) -> Grant:
        """See Rates."""
        file = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # From the lock on there is no await: closing another descriptor of the file would release it.
            for _ in range(LOCK_ATTEMPTS):
                try:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(LOCK_PAUSE_SECONDS)
            state = os.pread(file, _TIME.size, 0)
            paid_at = _TIME.unpack(state)[0] if len(state) == _TIME.size else 0.0
            paid_at, grant = take(paid_at, rate, self._now(), most_seconds)
            os.pwrite(file, _TIME.pack(paid_at), 0)
        finally:
            os.close(file)
        return grant

    def forget(self, name: str) -> None:
        """See Rates."""
        (self._folder / name).unlink(missing_ok=True)

    async def close(self) -> None:
        """See Rates."""
