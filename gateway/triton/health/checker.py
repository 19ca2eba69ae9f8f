"""The health checker of one Triton: it probes the models with real inferences and starts recovery when they fail."""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace

import structlog
from tritonclient.grpc.service_pb2 import RepositoryIndexResponse

from gateway import metrics
from gateway.errors import (
    GatewayError,
    InferenceFailed,
    ModelNotFound,
    ModelUnavailable,
    TritonUnreachable,
)
from gateway.inference.backend import EndpointHealth, ModelState
from gateway.triton.contract import pinned
from gateway.triton.endpoint import TritonEndpoint
from gateway.triton.error_table import NOT_LOADED, StubDied
from gateway.triton.health.expected import ExpectedModels
from gateway.triton.health.probes import Probes, Schedule
from gateway.triton.health.recovery import Recovery
from gateway.triton.health.reloading import ModelReloader
from gateway.triton.health.state import HealthState, ModelHealthState

log = structlog.get_logger("gateway")


class HealthChecker:
    """Probes each model of one Triton that keeps the contract, under any load.

    Each probe has a new image, so that no cache can answer in place of the model. The results of clients' requests
    count as well: answers make probes rarer, failures bring the next probe forward. `model_changed` gets the name of
    each model whose readiness has changed.
    """

    def __init__(
        self,
        endpoint: TritonEndpoint,
        *,
        model_name: str,
        schedule: Schedule,
        reloader: ModelReloader | None,
        expected: ExpectedModels | None = None,
        model_changed: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint = endpoint
        self._state = HealthState(ModelHealthState(model_name))
        self._default, self._records = self._state.default, self._state.records
        self._schedule = schedule
        self._probes = Probes(endpoint, schedule, clock)
        self._expected = expected or ExpectedModels(model_name)
        self._model_changed = model_changed
        self._clock = clock
        self._probe_soon, self._recovery_needed, self._models_missing = (
            asyncio.Event(),
            asyncio.Event(),
            asyncio.Event(),
        )
        self._recovery = Recovery(
            self._state,
            self._expected,
            self._probes,
            reloader,
            schedule,
            probe_again=self._probe,
            report=self._report,
            clock=clock,
        )
        self._reached = False
        self._reported_missing: dict[tuple[str, str], ModelState] = {}
        """The missing models and versions that were logged, by name and version."""
        self._reported_warnings: tuple[str, ...] = ()
        self._reported_ready: dict[str, bool] = {}

    @property
    def ready(self) -> bool:
        """Whether the default model answers."""
        return self._answers(self._default)

    def answers(self, model_name: str, model_version: str = "") -> bool:
        """Whether a model answers here: its last probe succeeded and is recent, and no request has failed since.

        For a model that is unknown here: whether this Triton answers at all.
        """
        records = self._of(model_name, model_version)
        if (model_version or not records) and self.lacks(model_name, model_version):
            return False
        return any(map(self._answers, records)) if records else self._reached

    def lacks(self, model_name: str, model_version: str = "") -> bool:
        """Whether a model should be served here and is not, so that a request for it gets 503 instead of 404."""
        return self._expected.lacks(model_name, model_version)

    def knows(self, model_name: str, model_version: str = "") -> bool:
        """Whether the model is probed here."""
        return bool(self._of(model_name, model_version))

    def health(self) -> EndpointHealth:
        """The health of this Triton and its models."""
        return EndpointHealth(
            address=self.endpoint.address,
            ready=self.ready,
            last_probe=self._default.last_probe,
            models_not_ready=self._expected.missing,
            warnings=(
                *(warning for record in self._records.values() for warning in record.warnings),
                *self._expected.warnings,
            ),
            healing=self._recovery.status,
            models=tuple(record.health(ready=self._answers(record)) for record in self._records.values()),
        )

    def answered(self, ensemble: str, sent_at: float) -> None:
        """Record a request that a model answered; `sent_at` is by time.monotonic."""
        record = self._records.setdefault(ensemble, ModelHealthState(ensemble))
        record.answered_at = record.used_at = self._clock()
        record.good_since = max(record.good_since, sent_at)

    def suspect(self, ensemble: str, error: GatewayError, sent_at: float) -> None:
        """Record a failed request, `sent_at` by time.monotonic; only a probe makes the model ready again."""
        record = self._records.get(ensemble)
        if record is None:
            return  # a name that a client invented
        record.answered_at, record.used_at = float("-inf"), self._clock()
        if isinstance(error, StubDied):
            if sent_at <= self._recovery.recovered_at:
                return
            self._recovery.died(record.step(error.step))
        elif isinstance(error, InferenceFailed) or sent_at <= record.good_since:
            return  # one bad request does not make a model unready; the next probe decides
        record.suspected = True
        self._probe_soon.set()

    def process_died(self, model: str) -> None:
        """Record the death of a process whose model is no step of an ensemble, such as a stateful model."""
        self._recovery.standalone.add(model)
        self._recovery_needed.set()

    def expect(self, models: Collection[str]) -> None:
        """Expect models to be served from now on, and retry where loading fails."""
        self._expected.expect(models)

    def lacking(self) -> list[str]:
        """The probed models that should be served here and are not."""
        return [name for name in self._records if self.lacks(name)]

    def forget_metrics(self) -> None:
        """Remove the metrics of this Triton's models."""
        for name, _ in self._reported_missing:
            metrics.forget_missing(self.endpoint.address, name)

    def forget(self, names: Collection[str]) -> None:
        """Stop probing models that were unloaded on purpose."""
        others = [record for name, record in self._records.items() if name not in names]
        steps = {step.name for name in names if name in self._records for step in self._records[name].steps}
        self._expected.forget({*names} | (steps - {step.name for record in others for step in record.steps}))
        for name in names:
            if self._records.get(name) not in (None, self._default):
                self._drop(name)

    async def run(self) -> None:
        """Run until cancelled; exceptions are logged and counted. Probes continue during reloads."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._repeat(self.probe_all, self._probe_soon))
            group.create_task(self._repeat(self.recover, self._recovery_needed))
            # A separate task, since a load may take minutes.
            group.create_task(self._repeat(self.load_missing, self._models_missing))

    async def probe_all(self) -> None:
        """Probe every model that is due."""
        with contextlib.suppress(GatewayError):
            await self._compare(await self.endpoint.index())
        await asyncio.gather(*(self._probe(record) for record in list(self._records.values()) if self._is_due(record)))
        self._drop_unloaded()
        self._report()
        if self._failing:
            self._recovery_needed.set()
        if self._expected.missing:
            self._models_missing.set()

    async def recover(self) -> None:
        """Reload the models that fail."""
        await self._recovery.recover()

    async def load_missing(self) -> None:
        """Load models that should be served and are not."""
        await self._recovery.load_missing()

    async def _repeat(self, action: Callable[[], Awaitable[None]], wake: asyncio.Event) -> None:
        while True:
            wake.clear()
            try:
                await action()
            except Exception:
                metrics.WATCH_FAULTS.inc()
                log.exception("watch_fault", triton=self.endpoint.address)
            seconds = self._schedule.interval_seconds * random.uniform(0.85, 1.15)  # noqa: S311  # spreads the gateways' probes
            seconds = min(self._schedule.quick_seconds, seconds) if self._failing else seconds
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await wake.wait()

    @property
    def _failing(self) -> bool:
        # A model may stay unloaded for days, and the index shows when it is loaded; only the default model is urgent.
        return self._recovery.needed or not all(
            record.sound or (record is not self._default and self.lacks(record.name))
            for record in self._records.values()
        )

    @property
    def probed(self) -> bool:
        """Whether the default model was probed at least once."""
        return self._default.last_probe is not None

    async def fails_anywhere(self, model_name: str, model_version: str) -> bool:
        """Probe all instances of a model now: whether any of them fails; raises GatewayError as `infer` does."""
        for record in self._of(model_name, model_version):
            if error := await self._probes.failure(record):
                self.suspect(record.name, error, float("inf"))
                return True
        return False

    def _of(self, model_name: str, model_version: str) -> list[ModelHealthState]:
        """The states of the ensembles that may answer for a model's version."""
        names = [model_name, *([pinned(model_name, model_version)] if model_version else [])]
        return [self._records[name] for name in names if name in self._records]

    async def _probe(self, record: ModelHealthState) -> None:
        """Probe one model and record the result."""
        record.suspected = False
        outcome = await self._probes.run(record)
        error = outcome.probe.error
        if isinstance(error, ModelNotFound | ModelUnavailable) and self.lacks(record.name):
            error = self._not_loaded(record.name, error)
            outcome = replace(outcome, probe=replace(outcome.probe, error=error))
        self._reached = not isinstance(error, TritonUnreachable)
        if error is None:
            record.passed(outcome.probe, outcome.sent_at, outcome.ended_at)
        elif not isinstance(error, StubDied):
            record.failed(outcome.probe, error, outcome.ended_at)
        elif outcome.sent_at >= self._recovery.recovered_at:
            record.failed(outcome.probe, error, outcome.ended_at)
            self._recovery.died(record.step(error.step))
        # Otherwise the probe was sent before a reload that has replaced the dead process: such a probe takes 1 to 2 s.

    async def _compare(self, index: RepositoryIndexResponse) -> None:
        """Compare Triton's index with the expected models, and add new ensembles."""
        if not self._recovery.recovering:  # a model that is being reloaded is not missing
            self._expected.update(index)
        for name in await self._probes.ensembles(index, but=self._records):
            self._records.setdefault(name, ModelHealthState(name))

    def _not_loaded(self, model: str, error: ModelNotFound | ModelUnavailable) -> ModelUnavailable:
        """The error of an expected model that is not loaded, with Triton's reason as its cause."""
        if isinstance(error, StubDied):
            return error
        reasons = [each.reason for each in self._expected.missing if each.name == model]
        unavailable = ModelUnavailable(NOT_LOADED)
        unavailable.__cause__ = LookupError(reasons[0]) if reasons else error.__cause__
        return unavailable

    def _answers(self, record: ModelHealthState) -> bool:
        if not record.sound or record.name in self._recovery.recovering or self._recovery.affects(record):
            return False
        age_seconds = self._clock() - max(record.tried_at, record.answered_at)
        interval_seconds = self._schedule.interval_seconds * (
            1 if record is self._default else self._schedule.others_intervals
        )
        return age_seconds <= 1.5 * interval_seconds + 2 * self._schedule.timeout_seconds

    def _is_due(self, record: ModelHealthState) -> bool:
        if record.name in self._recovery.recovering:
            return False
        if not record.sound:
            return True
        interval_seconds = self._schedule.interval_seconds * (
            1 if record is self._default else self._schedule.others_intervals
        )
        now = self._clock()
        if now - record.answered_at < interval_seconds:
            interval_seconds *= self._schedule.trust_intervals
        return now - record.tried_at >= 0.8 * interval_seconds

    def _drop_unloaded(self) -> None:
        """Stop probing unloaded models; those that another gateway reloads are found again in the index."""
        for record in list(self._records.values()):
            error = record.last_probe.error if record.last_probe else None
            if record is not self._default and isinstance(error, ModelNotFound | ModelUnavailable):
                recovering = record.name in self._recovery.recovering
                affected = isinstance(error, StubDied) or recovering or self._recovery.affects(record)
                if not affected and not self.lacks(record.name):
                    self._drop(record.name)

    def _drop(self, name: str) -> None:
        self._records.pop(name, None)
        self._reported_ready.pop(name, None)
        self._model_changed(name)

    def _report(self) -> None:
        """Log and count changes of readiness."""
        self._report_missing()
        for record in list(self._records.values()):
            ready = self._answers(record)
            if self._reported_ready.get(record.name) == ready or record.last_probe is None:
                continue
            self._reported_ready[record.name] = ready
            self._model_changed(record.name)
            if record is self._default:
                metrics.TRITON_READY.labels(self.endpoint.address).set(ready)
            self._log(record, ready=ready)

    def _report_missing(self) -> None:
        for warning in self._expected.warnings:
            if warning not in self._reported_warnings:
                log.warning("contract", triton=self.endpoint.address, problem=warning)
        self._reported_warnings = self._expected.warnings
        missing = {(each.name, each.version): each for each in self._expected.missing}
        for key, each in missing.items():
            before = self._reported_missing.get(key)
            if before is None or before.reason != each.reason:
                log.warning(
                    "model_missing",
                    triton=self.endpoint.address,
                    model=each.name,
                    version=each.version,
                    state=each.state,
                    cause=each.reason,
                )
        names, names_before = ({name for name, _ in keys} for keys in (missing, self._reported_missing))
        for name in names ^ names_before:
            metrics.MODEL_MISSING.labels(self.endpoint.address, name).set(name in names)
            if name not in names:
                log.info("model_not_missing", triton=self.endpoint.address, model=name)
        self._reported_missing = missing

    def _log(self, record: ModelHealthState, *, ready: bool) -> None:
        error = record.last_probe.error if record.last_probe else None
        if ready:
            log.info("triton_ready", triton=self.endpoint.address, model=record.name)
        elif error is not None:
            level = log.warning if isinstance(error, TritonUnreachable | ModelUnavailable) else log.error
            level(
                "triton_not_ready",
                triton=self.endpoint.address,
                model=record.name,
                code=error.code,
                cause=str(error.__cause__ or error),
            )
