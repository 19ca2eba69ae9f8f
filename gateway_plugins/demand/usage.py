"""How models are used: by requests of this gateway, and by those of other gateways that share a Triton."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tritonclient.grpc.service_pb2 import ModelStatisticsResponse

from gateway.inference.model_info import LoadTimes

IN_USE_SECONDS = 60.0
"""A client that has requested a model within this time uses it."""
REMEMBERED_CLIENTS = 64
"""Clients that are remembered for each model; API keys have names, so there are few."""
REMEMBERED_LOADS = 100
"""Loads of a model from which its percentiles are computed."""
NEVER = float("-inf")


@dataclass(slots=True)
class Usage:
    """How this gateway uses one model."""

    used_at: float = NEVER
    """When a request last needed it."""
    in_flight: int = 0
    """Its images in calls."""
    most_in_flight: int = 0
    """Since `take_most_in_flight` was last called."""
    load_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED_LOADS))
    loads: int = 0
    _clients: dict[str, float] = field(default_factory=dict)
    """When each client last requested it, the most recent last."""

    def request(self, now: float, client: str = "") -> None:
        """Note a request of a client."""
        self.used_at = now
        self._clients.pop(client, None)
        self._clients[client] = now
        if len(self._clients) > REMEMBERED_CLIENTS:
            del self._clients[next(iter(self._clients))]

    def clients(self, now: float) -> frozenset[str]:
        """The clients that use it."""
        return frozenset(client for client, at in self._clients.items() if now - at < IN_USE_SECONDS)

    def enter(self, images: int) -> None:
        """Begin a call with this number of images."""
        self.in_flight += images
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def leave(self, images: int, now: float) -> None:
        """End a call."""
        self.in_flight -= images
        self.used_at = now

    def take_most_in_flight(self) -> int:
        """The most images that were in flight at once since the last call of this method."""
        most, self.most_in_flight = self.most_in_flight, self.in_flight
        return most

    def add_load(self, seconds: float) -> None:
        """Record the time of a load."""
        self.loads += 1
        self.load_seconds.append(seconds)

    def load_times(self, memory_bytes: int | None) -> LoadTimes | None:
        """The times of the last loads; None if there were none."""
        if not self.load_seconds:
            return None
        times = sorted(self.load_seconds)
        return LoadTimes(self.loads, percentile(times, 50), percentile(times, 99), memory_bytes)


def percentile(ordered: list[float], percent: int) -> float:
    """The nearest-rank percentile of ordered values, at least one."""
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(rank, 1) - 1]


class TritonUsage:
    """When the models of one Triton were loaded, and last used by other gateways.

    Triton counts the inferences of each model; a count that has changed, without a use by this gateway, shows that
    another one uses the model. Times are of this process's clock: clocks of other machines do not matter.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._used_at: dict[str, float] = {}
        self._loaded_at: dict[str, float] = {}
        self._counted_at = NEVER

    def update(
        self,
        loaded: Iterable[str],
        statistics: ModelStatisticsResponse | None,
        own: Mapping[str, Usage],
        model_of: Callable[[str], str] = str,
    ) -> None:
        """Compare with the models that are loaded now, and with Triton's statistics, if they could be read.

        `own` is the use by this gateway; `model_of` returns the model to which the ensemble of a version belongs.
        """
        now, names = self._clock(), set(loaded)
        self._loaded_at = {name: self._loaded_at.get(name, now) for name in names}
        if statistics is None:
            return
        counts: dict[str, int] = {}
        for model in statistics.model_stats:
            answered = model.inference_stats.success.count + model.inference_stats.fail.count
            name = model_of(model.name)
            counts[name] = counts.get(name, 0) + int(answered)
        for name in names & counts.keys():
            explained = name in own and own[name].used_at >= self._counted_at
            if name in self._counts and self._counts[name] != counts[name] and not explained:
                self._used_at[name] = now
        self._counts, self._counted_at = counts, now

    def mark_loaded(self, name: str) -> None:
        """Record that a model was loaded now."""
        self._loaded_at[name] = self._clock()

    def loaded_seconds(self, name: str) -> float:
        """Seconds since a model was loaded, or was first seen."""
        return self._clock() - self._loaded_at.get(name, self._clock())

    def used_at(self, name: str) -> float:
        """When a model was last seen to be loaded, or used by another gateway."""
        return max(self._used_at.get(name, NEVER), self._loaded_at.get(name, NEVER))
