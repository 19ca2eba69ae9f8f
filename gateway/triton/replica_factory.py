"""Makes the replicas of a pool: one for each Triton that it uses."""

from collections.abc import Callable, Collection, Sequence

from gateway.triton.catalogue import Models
from gateway.triton.codec import Codecs
from gateway.triton.endpoint import TritonEndpoint
from gateway.triton.grpc_endpoint import GrpcEndpoint
from gateway.triton.health.checker import Watch
from gateway.triton.health.expected import ExpectedModels, Shares
from gateway.triton.health.state import HealthState, Schedule
from gateway.triton.replica import Replica, TritonLoad


class ReplicaFactory:
    """Makes the replicas of a pool, with what they all have in common.

    `watch` makes a health checker, see gateway.triton.health.checker.watcher. `splits` are the versions of models with
    their shares of the requests, `load` the models that should be loaded, with `on_demand` besides those that requests
    load; `codecs` are those of the models, `connect` makes the endpoint of an address.
    """

    def __init__(
        self,
        *,
        model_name: str,
        schedule: Schedule,
        watch: Watch,
        splits: Sequence[Shares] = (),
        load: Collection[str] = (),
        on_demand: bool = False,
        codecs: Codecs | None = None,
        connect: Callable[[str], TritonEndpoint] = GrpcEndpoint,
    ) -> None:
        self.schedule = schedule
        self.codecs = codecs or Codecs()
        self._model_name = model_name
        self._watch = watch
        self._splits, self._load, self._on_demand = splits, load, on_demand
        self._connect = connect

    def replica(self, address: str, model_changed: Callable[[str], None]) -> Replica:
        """The replica at an address host:port, whose health checker is not started yet.

        `model_changed` is called with a model whose readiness may have changed.
        """
        endpoint = self._connect(address)
        expected = ExpectedModels(self._model_name, splits=self._splits, load=self._load, on_demand=self._on_demand)
        health = HealthState(address, expected, self.schedule)
        checker = self._watch(endpoint, health, model_changed, self.codecs)
        return Replica(address, endpoint, health, checker, Models(endpoint, health, self.codecs), TritonLoad())

    def want(self, name: str) -> None:
        """Have a model loaded by every replica that is made later, as if `load` had named it."""
        self._load = {*self._load, name}
