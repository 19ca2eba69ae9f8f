"""Single probes: a real inference through one model of one Triton, and the check of its configuration."""

import time
from collections.abc import Callable, Container
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog
from tritonclient.grpc.service_pb2 import RepositoryIndexResponse

from gateway import metrics
from gateway.deadline import Deadline
from gateway.errors import ContractBroken, GatewayError, InferenceFailed
from gateway.inference.backend import Call, ProbeResult
from gateway.inference.probe import probe
from gateway.triton.contract import breaches, has_labels
from gateway.triton.endpoint import TritonEndpoint, step_configs
from gateway.triton.error_table import StubDied
from gateway.triton.health.expected import READY
from gateway.triton.health.state import ModelHealthState
from gateway.triton.model_config import HOLDS_BACK, REMEDY, has_queue_policy, steps
from gateway.triton.steps import steps_of

log = structlog.get_logger("gateway")


@dataclass(frozen=True, slots=True)
class Schedule:
    """When models are probed, and when they are reloaded."""

    interval_seconds: float
    """Between probes of a model without traffic."""
    timeout_seconds: float
    quick_seconds: float = 0.5
    """Between probes while a model fails."""
    orphaned_seconds: float = 30.0
    """How long a model may stay unloaded before it is loaded again: the gateway that unloaded it may have died."""
    trust_intervals: int = 4
    """Intervals for which clients' answers replace probes; not longer, since a cache may have answered."""
    others_intervals: int = 2
    """Intervals between probes of models other than the default."""
    failures: int = 3
    """Failed probes in a row after which a model is reloaded though no process died."""


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """A probe, and when it was sent and had ended by the health checker's clock."""

    probe: ProbeResult
    sent_at: float
    ended_at: float


class Probes:
    """Probes the models of one Triton, each time with an image that no cache has seen."""

    def __init__(
        self, endpoint: TritonEndpoint, schedule: Schedule, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._endpoint = endpoint
        self._schedule = schedule
        self._clock = clock
        self._no_ensembles: set[str] = set()

    async def run(self, record: ModelHealthState) -> ProbeOutcome:
        """Send a tiny image through a model; the first time, check its configuration."""
        at, started = datetime.now(UTC), self._clock()
        error: GatewayError | None = None
        try:
            if not record.checked:
                await self._check(record)
            await self._probe(record)
        except GatewayError as exc:
            error = exc
        now = self._clock()
        return ProbeOutcome(ProbeResult(at, now - started, error), started, now)

    async def failure(self, record: ModelHealthState) -> StubDied | InferenceFailed | None:
        """Probe all instances: the first failure, or None; raises GatewayError if the model cannot be reached."""
        for _ in range(2 * record.instances):  # Triton gives requests to its instances in rotation
            try:
                await self._probe(record)
            except (StubDied, InferenceFailed) as exc:
                return exc
        return None

    async def ensembles(self, index: RepositoryIndexResponse, *, but: Container[str]) -> list[str]:
        """The ensembles that Triton lists as ready and that keep the contract, except those in `but`."""
        ready = {model.name for model in index.models if model.state == READY}
        found = []
        for name in sorted(ready - self._no_ensembles):
            if name in but:
                continue
            config = await self._endpoint.config(name)
            if steps(config) and not breaches(config):
                found.append(name)
            else:
                self._no_ensembles.add(name)
        return found

    async def _probe(self, record: ModelHealthState) -> None:
        metrics.PROBES.inc()
        deadline = Deadline.after(self._schedule.timeout_seconds)
        await self._endpoint.infer(Call(probe(), record.name, "", None, deadline, "readiness"), class_count=1)

    async def _check(self, record: ModelHealthState) -> None:
        await self._endpoint.fetch_server_metadata()  # the address may have another Triton now
        config = await self._endpoint.config(record.name)
        if found := breaches(config):
            raise ContractBroken(f"{record.name}/config.pbtxt: {'; '.join(found)}.")
        configs = await step_configs(self._endpoint, config)
        record.steps = steps_of(config)
        counts = (sum(max(1, group.count) for group in step.instance_group) for step in configs)
        record.instances = min(16, max(1, *counts))
        warnings = []
        if not has_labels(configs[-1]):
            warnings.append(f"{configs[-1].name}/config.pbtxt: output has no label_filename; ids are the labels")
        warnings += [f"{each.name}/config.pbtxt: {HOLDS_BACK}; {REMEDY}" for each in configs if has_queue_policy(each)]
        if tuple(warnings) != record.warnings:
            record.warnings = tuple(warnings)
            for warning in warnings:
                log.warning("contract", triton=self._endpoint.address, problem=warning)
        record.checked = True
