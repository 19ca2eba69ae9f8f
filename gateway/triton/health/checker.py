"""The truth about one Triton's health: real inferences, tried again and again, and what is done when they fail."""

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
    """Tries an inference through each model of one Triton that keeps the contract, whatever the load.

    The image is a new one each time, so that no cache can answer in the model's place. What clients' requests show
    counts as well: answers make trials rarer, failures bring the next one forward.
    """

    def __init__(
        self,
        endpoint: TritonEndpoint,
        *,
        model_name: str,
        schedule: Schedule,
        healer: ModelReloader | None,
        expected: ExpectedModels | None = None,
        tell: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint = endpoint
        self._known = HealthState(ModelHealthState(model_name))
        self._default, self._records = self._known.default, self._known.records
        self._schedule = schedule
        self._trials = Probes(endpoint, schedule, clock)
        self._expected = expected or ExpectedModels(model_name)
        self._tell_model = tell
        self._clock = clock
        self._suspicion, self._sickness, self._absence = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._mending = Recovery(
            self._known,
            self._expected,
            self._trials,
            healer,
            schedule,
            try_again=self._try,
            tell=self._tell,
            clock=clock,
        )
        self._reached = False
        self._reported: dict[tuple[str, str], ModelState] = {}
        """The missing models and versions that were logged."""
        self._warned: tuple[str, ...] = ()
        self._told: dict[str, bool] = {}

    @property
    def ready(self) -> bool:
        """Whether the default model answers."""
        return self._answers(self._default)

    def answers(self, model_name: str, model_version: str = "") -> bool:
        """Whether a model may be asked here: its last trial succeeded, is not old, and nothing has failed since.

        Of a model that is not known here, whether this Triton answers at all.
        """
        records = self._of(model_name, model_version)
        if (model_version or not records) and self.lacks(model_name, model_version):
            return False
        return any(map(self._answers, records)) if records else self._reached

    def lacks(self, model_name: str, model_version: str = "") -> bool:
        """Whether a model should be served here and is not: to ask for it is no mistake."""
        return self._expected.lacks(model_name, model_version)

    def knows(self, model_name: str, model_version: str = "") -> bool:
        """Whether a model is watched here."""
        return bool(self._of(model_name, model_version))

    def health(self) -> EndpointHealth:
        """What is known."""
        return EndpointHealth(
            address=self.endpoint.address,
            ready=self.ready,
            trial=self._default.trial,
            models_not_ready=self._expected.missing,
            warnings=(
                *(warning for record in self._records.values() for warning in record.warnings),
                *self._expected.warnings,
            ),
            healing=self._mending.status,
            models=tuple(record.health(ready=self._answers(record)) for record in self._records.values()),
        )

    def answered(self, ensemble: str, sent_at: float) -> None:
        """Take note of a request, sent at a moment of time.monotonic, that a model answered."""
        record = self._records.setdefault(ensemble, ModelHealthState(ensemble))
        record.answered_at = record.asked_at = self._clock()
        record.good_since = max(record.good_since, sent_at)

    def suspect(self, ensemble: str, error: GatewayError, sent_at: float) -> None:
        """Take note of a request, sent at a moment of time.monotonic, that failed: trust only a trial from now on."""
        record = self._records.get(ensemble)
        if record is None:
            return  # a name that a client made up
        record.answered_at, record.asked_at = float("-inf"), self._clock()
        if isinstance(error, StubDied):
            if sent_at <= self._mending.mended_at:
                return
            self._mending.died(record.step(error.step))
        elif isinstance(error, InferenceFailed) or sent_at <= record.good_since:
            return  # the next trial will tell; one bad request is no reason to leave a model out
        record.suspected = True
        self._suspicion.set()

    def lost(self, model: str) -> None:
        """Take note that the process of a model died that is no ensemble's step, such as a stateful one."""
        self._mending.lone.add(model)
        self._sickness.set()

    def expect(self, models: Collection[str]) -> None:
        """Load models that should be served from now on, where that has failed."""
        self._expected.expect(models)

    def lacking(self) -> list[str]:
        """The watched models that should be served here and are not."""
        return [name for name in self._records if self.lacks(name)]

    def forget_metrics(self) -> None:
        """Report nothing of this Triton's models any more."""
        for name, _ in self._reported:
            metrics.forget_missing(self.endpoint.address, name)

    def forget(self, names: Collection[str]) -> None:
        """Watch models no longer that were unloaded on purpose."""
        others = [record for name, record in self._records.items() if name not in names]
        steps = {step.name for name in names if name in self._records for step in self._records[name].steps}
        self._expected.forget({*names} | (steps - {step.name for record in others for step in record.steps}))
        for name in names:
            if self._records.get(name) not in (None, self._default):
                self._drop(name)

    async def run(self) -> None:
        """Watch until cancelled, whatever goes wrong inside. Trials go on while something is being reloaded."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._again_and_again(self.try_all, self._suspicion))
            group.create_task(self._again_and_again(self.heal, self._sickness))
            # Beside the other, since a load may take minutes.
            group.create_task(self._again_and_again(self.load_missing, self._absence))

    async def try_all(self) -> None:
        """Try every model whose turn it is."""
        with contextlib.suppress(GatewayError):
            await self._compare(await self.endpoint.index())
        await asyncio.gather(*(self._try(record) for record in list(self._records.values()) if self._is_due(record)))
        self._drop_unloaded()
        self._tell()
        if self._failing:
            self._sickness.set()
        if self._expected.missing:
            self._absence.set()

    async def heal(self) -> None:
        """Mend what can be mended."""
        await self._mending.mend()

    async def load_missing(self) -> None:
        """Load models that should be served and are not."""
        await self._mending.load_missing()

    async def _again_and_again(self, step: Callable[[], Awaitable[None]], sooner: asyncio.Event) -> None:
        while True:
            sooner.clear()
            try:
                await step()
            except Exception:
                metrics.WATCH_FAULTS.inc()
                log.exception("watch_fault", triton=self.endpoint.address)
            seconds = self._schedule.interval_seconds * random.uniform(0.85, 1.15)  # noqa: S311  # so that gateways spread
            seconds = min(self._schedule.quick_seconds, seconds) if self._failing else seconds
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await sooner.wait()

    @property
    def _failing(self) -> bool:
        # A model that is not loaded may stay so for days, and the index shows when it is; the default one is urgent.
        return self._mending.needed or not all(
            record.sound or (record is not self._default and self.lacks(record.name))
            for record in self._records.values()
        )

    @property
    def tried(self) -> bool:
        """Whether the default model was tried at all."""
        return self._default.trial is not None

    async def fails_anywhere(self, model_name: str, model_version: str) -> bool:
        """Whether a model that is watched fails at any of its instances now; raises GatewayError as `infer` does."""
        for record in self._of(model_name, model_version):
            if error := await self._trials.fault(record):
                self.suspect(record.name, error, float("inf"))
                return True
        return False

    def _of(self, model_name: str, model_version: str) -> list[ModelHealthState]:
        """What is known of the ensembles that may answer for a model's version."""
        names = [model_name, *([pinned(model_name, model_version)] if model_version else [])]
        return [self._records[name] for name in names if name in self._records]

    async def _try(self, record: ModelHealthState) -> None:
        """Try one model, and note what that shows."""
        record.suspected = False
        tried = await self._trials.run(record)
        error = tried.trial.error
        if isinstance(error, ModelNotFound | ModelUnavailable) and self.lacks(record.name):
            error = self._not_loaded(record.name, error)
            tried = replace(tried, trial=replace(tried.trial, error=error))
        self._reached = not isinstance(error, TritonUnreachable)
        if error is None:
            record.passed(tried.trial, tried.sent_at, tried.ended_at)
        elif not isinstance(error, StubDied):
            record.failed(tried.trial, error, tried.ended_at)
        elif tried.sent_at >= self._mending.mended_at:
            record.failed(tried.trial, error, tried.ended_at)
            self._mending.died(record.step(error.step))
        # Else it shows the death that a reload has mended since: to ask a dead process takes a second or two.

    async def _compare(self, index: RepositoryIndexResponse) -> None:
        """Take note of the models that Triton lists, and of those that it should serve and does not."""
        if not self._mending.under_repair:  # what is being reloaded comes back
            self._expected.update(index)
        for name in await self._trials.ensembles(index, but=self._records):
            self._records.setdefault(name, ModelHealthState(name))

    def _not_loaded(self, model: str, error: ModelNotFound | ModelUnavailable) -> ModelUnavailable:
        """The error of a model that should be loaded, with Triton's reason as its cause."""
        if isinstance(error, StubDied):
            return error
        reasons = [each.reason for each in self._expected.missing if each.name == model]
        unavailable = ModelUnavailable(NOT_LOADED)
        unavailable.__cause__ = LookupError(reasons[0]) if reasons else error.__cause__
        return unavailable

    def _answers(self, record: ModelHealthState) -> bool:
        if not record.sound or record.name in self._mending.under_repair or self._mending.hurts(record):
            return False
        age_seconds = self._clock() - max(record.tried_at, record.answered_at)
        interval_seconds = self._schedule.interval_seconds * (
            1 if record is self._default else self._schedule.others_intervals
        )
        return age_seconds <= 1.5 * interval_seconds + 2 * self._schedule.timeout_seconds

    def _is_due(self, record: ModelHealthState) -> bool:
        if record.name in self._mending.under_repair:
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
        """Watch no longer what is not loaded any more; what another gateway reloads is found again."""
        for record in list(self._records.values()):
            error = record.trial.error if record.trial else None
            if record is not self._default and isinstance(error, ModelNotFound | ModelUnavailable):
                under_repair = record.name in self._mending.under_repair
                hurt = isinstance(error, StubDied) or under_repair or self._mending.hurts(record)
                if not hurt and not self.lacks(record.name):
                    self._drop(record.name)

    def _drop(self, name: str) -> None:
        self._records.pop(name, None)
        self._told.pop(name, None)
        self._tell_model(name)

    def _tell(self) -> None:
        """Log and count what has changed."""
        self._tell_missing()
        for record in list(self._records.values()):
            ready = self._answers(record)
            if self._told.get(record.name) == ready or record.trial is None:
                continue
            self._told[record.name] = ready
            self._tell_model(record.name)
            if record is self._default:
                metrics.TRITON_READY.labels(self.endpoint.address).set(ready)
            self._log(record, ready=ready)

    def _tell_missing(self) -> None:
        for warning in self._expected.warnings:
            if warning not in self._warned:
                log.warning("contract", triton=self.endpoint.address, problem=warning)
        self._warned = self._expected.warnings
        missing = {(each.name, each.version): each for each in self._expected.missing}
        for key, each in missing.items():
            before = self._reported.get(key)
            if before is None or before.reason != each.reason:
                log.warning(
                    "model_missing",
                    triton=self.endpoint.address,
                    model=each.name,
                    version=each.version,
                    state=each.state,
                    cause=each.reason,
                )
        names, names_before = ({name for name, _ in keys} for keys in (missing, self._reported))
        for name in names ^ names_before:
            metrics.MODEL_MISSING.labels(self.endpoint.address, name).set(name in names)
            if name not in names:
                log.info("model_not_missing", triton=self.endpoint.address, model=name)
        self._reported = missing

    def _log(self, record: ModelHealthState, *, ready: bool) -> None:
        error = record.trial.error if record.trial else None
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
