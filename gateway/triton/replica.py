"""One Triton in use, with its health, its models and its load."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.triton.endpoint import TritonEndpoint
from gateway.triton.health.state import HealthState

if TYPE_CHECKING:
    from gateway.triton.catalogue import Models
    from gateway.triton.health.checker import HealthChecker


HALF_LIFE_SECONDS = 5.0
"""Half-life of the measured latency: a slow Triton gets calls again, and one that becomes slow is detected."""


class TritonLoad:
    """The images and sequences that this gateway has at one Triton, and the latency of its calls there."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.images = 0
        self.sequences = 0
        """Sequences whose state this Triton keeps."""
        self._clock = clock
        self._seconds: float | None = None
        self._at = 0.0

    def latency_seconds(self, usual: float) -> float:
        """Estimated seconds of a call; it decays to `usual`, the mean of the others, as the last answer gets older."""
        if self._seconds is None:
            return usual
        weight: float = 0.5 ** ((self._clock() - self._at) / HALF_LIFE_SECONDS)
        return weight * self._seconds + (1 - weight) * usual

    @property
    def seconds(self) -> float | None:
        """Seconds of a call there, a moving average; None before the first."""
        return self._seconds

    def observe(self, seconds: float) -> None:
        """Record the latency of a call."""
        now = self._clock()
        if self._seconds is None:
            self._seconds = seconds
        else:
            # Calls in quick succession count less each, so that a burst does not erase earlier measurements.
            weight = max(0.1, 1 - 0.5 ** ((now - self._at) / HALF_LIFE_SECONDS))
            self._seconds += weight * (seconds - self._seconds)
        self._at = now


@dataclass(slots=True)
class Replica:
    """One Triton in use, at an address host:port."""

    address: str
    endpoint: TritonEndpoint
    health: HealthState
    checker: "HealthChecker"
    models: "Models"
    load: TritonLoad
    task: "asyncio.Task[None] | None" = None
