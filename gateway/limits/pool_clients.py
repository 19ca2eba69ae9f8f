"""The clients of a pool: whether the gateway waits for them, and which of them is evicted first."""

import math
from abc import ABC, abstractmethod

from gateway.errors import Overloaded
from gateway.limits.pace import Pace

IDLE_SECONDS = 1.0
"""A client that has not read, and has not sent a request or a frame, for this long is idle."""


class PoolClient(ABC):
    """What the eviction rule of gateway.limits.pools needs of a client."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Whether the gateway waits for this client; others are never evicted."""

    @abstractmethod
    def eviction_score(self, held: int) -> float:
        """The idle client with the highest score is evicted first; `held` is how much it holds of the pool."""

    @abstractmethod
    def evict(self, error: Overloaded) -> None:
        """End what this client does, with an error; it holds nothing any more."""


class UploadingClient(PoolClient):
    """A client that sends a body: its score is the time that it needs, at its speed, to send what it holds."""

    pace: Pace

    @property
    def is_idle(self) -> bool:
        """Whether the gateway waits for the next bytes."""
        return self.pace.is_idle

    def eviction_score(self, held: int) -> float:
        """Seconds that the client needs to send `held` bytes."""
        return held / max(self.pace.bytes_per_second, 1.0)


class WaitingClient(PoolClient):
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


class NeverEvicted(PoolClient):
    """A client that is never evicted, and for which no other is."""

    is_idle = False

    def eviction_score(self, held: int) -> float:  # noqa: ARG002  # see PoolClient
        """Above every other score, so a pool that is full refuses this client."""
        return math.inf

    def evict(self, error: Overloaded) -> None:
        """Never called."""
        raise AssertionError from error
