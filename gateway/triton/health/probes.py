"""Probes of the models of one Triton: real inferences of tiny images."""

from datetime import UTC, datetime

import structlog
from tritonclient.grpc.service_pb2 import RepositoryIndexResponse

from gateway import metrics
from gateway.errors import GatewayError, InferenceFailed
from gateway.inference.backend import Call, ProbeResult
from gateway.timing import Deadline
from gateway.triton.client import StubDied, TritonEndpoint, step_configs
from gateway.triton.configs import HOLDS_BACK, REMEDY, has_queue_policy, sizes
from gateway.triton.health.state import READY, HealthState, ModelHealthState, steps_of
from gateway.triton.wire import Codecs

log = structlog.get_logger("gateway")


class Probes:
    """Probes the models of one Triton, each time with an image that no cache has seen."""

    def __init__(self, endpoint: TritonEndpoint, state: HealthState, codecs: Codecs) -> None:
        self._endpoint = endpoint
        self._state = state
        self._codecs = codecs
        self._no_ensembles: set[str] = set()

    async def run(self, model: ModelHealthState) -> None:
        """Send a tiny image through a model and record the result; the first time, check its configuration."""
        model.suspected = False
        at, sent_at = datetime.now(UTC), self._state.clock()
        error: GatewayError | None = None
        try:
            if not model.checked:
                await self._check(model)
            await self._probe(model)
        except GatewayError as exc:
            error = exc
        self._state.record(model, ProbeResult(at, self._state.clock() - sent_at, error), sent_at)

    async def failure(
        self, model: ModelHealthState, timeout_seconds: float | None = None
    ) -> StubDied | InferenceFailed | None:
        """Probe all instances: the first failure, or None.

        `timeout_seconds` limits each probe, by default as the schedule does. Raises DeadlineExceeded, or another
        GatewayError if the model cannot be reached.
        """
        for _ in range(2 * model.instances):  # Triton gives requests to its instances in rotation
            try:
                await self._probe(model, timeout_seconds)
            except (StubDied, InferenceFailed) as exc:
                return exc
        return None

    async def discover(self, index: RepositoryIndexResponse) -> None:
        """Add the ensembles that Triton lists as ready and that keep the contract to the probed models."""
        ready = {model.name for model in index.models if model.state == READY}
        for name in sorted(ready - self._no_ensembles - self._state.models.keys()):
            config = await self._endpoint.config(name)
            if self._codecs.takes_images(config):
                self._state.models.setdefault(name, ModelHealthState(name))
            else:
                self._no_ensembles.add(name)

    async def _probe(self, model: ModelHealthState, timeout_seconds: float | None = None) -> None:
        metrics.PROBES.inc()
        deadline = Deadline.after(timeout_seconds or self._state.schedule.timeout_seconds)
        call = Call([model.codec.probe()], model.name, "", None, deadline, "readiness")
        await self._endpoint.infer(call, class_count=1, codec=model.codec)

    async def _check(self, model: ModelHealthState) -> None:
        await self._endpoint.fetch_server_metadata()  # the address may have another Triton now
        config = await self._endpoint.config(model.name)
        model.codec = self._codecs.of(config)
        configs = await step_configs(self._endpoint, config)
        model.steps = steps_of(config)
        counts = (sum(max(1, group.count) for group in step.instance_group) for step in configs)
        model.instances = min(16, max(1, *counts))
        found_sizes = tuple(map(sizes, configs))
        if found_sizes != model.sizes:
            model.sizes = found_sizes
            log.info("instances", triton=self._endpoint.address, model=model.name, steps=found_sizes)
        warnings = [*model.codec.limitations(configs[-1])]
        warnings += [f"{each.name}/config.pbtxt: {HOLDS_BACK}; {REMEDY}" for each in configs if has_queue_policy(each)]
        if tuple(warnings) != model.warnings:
            model.warnings = tuple(warnings)
            for warning in warnings:
                log.warning("contract", triton=self._endpoint.address, problem=warning)
        model.checked = True
