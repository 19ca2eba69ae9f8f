"""The health checker of one Triton: it probes the models with real inferences, and follows which models there are."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

import structlog
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import RepositoryIndexResponse

from gateway import metrics
from gateway.errors import GatewayError, InferenceFailed, ModelNotFound, ModelUnavailable, TritonUnreachable
from gateway.inference.backend import Call, ModelState
from gateway.timing import Deadline
from gateway.triton.client import StubDied, TritonEndpoint
from gateway.triton.codecs import Codecs
from gateway.triton.configs import HOLDS_BACK, REMEDY, has_queue_policy, sizes
from gateway.triton.health.state import LOADING, READY, HealthState, ProbedModel, Step

log = structlog.get_logger("gateway")

Action = Callable[[], Awaitable[None]]


@dataclass(eq=False)
class HealthChecker:
    """Keeps the `state` of one Triton up to date.

    Each probe has a new image, so that no cache can answer in place of the model. The results of clients' requests
    count as well: answers make probes rarer, failures bring the next probe forward.
    """

    endpoint: TritonEndpoint
    state: HealthState
    codecs: Codecs = field(default_factory=Codecs)
    model_changed: Callable[[str], None] = lambda _: None
    """Gets the name of each model whose readiness or rollout has changed."""
    _no_ensembles: set[str] = field(default_factory=set)
    """Loaded models that do not classify images, such as steps."""
    _reported_missing: dict[tuple[str, str], ModelState] = field(default_factory=dict)
    """The missing models and versions that were logged, by name and version."""
    _reported_warnings: tuple[str, ...] = ()
    _reported_ready: dict[str, bool] = field(default_factory=dict)

    def actions(self) -> Mapping[Action, float]:
        """What to do, each in a task of its own, since a probe may take seconds; with the longest pauses in seconds."""
        schedule = self.state.schedule
        return {self.probe_all: schedule.interval_seconds, self.follow: schedule.follow_seconds}

    async def run(self) -> None:
        """Run until cancelled; exceptions are logged and counted."""
        async with asyncio.TaskGroup() as group:
            for action, pause_seconds in self.actions().items():
                group.create_task(self._repeat(action, pause_seconds))

    async def probe_all(self) -> None:
        """Probe every model that is due."""
        state = self.state
        if any(map(state.is_due, state.models.values())):
            await self.follow()
        await asyncio.gather(*(self.probe(model) for model in list(state.models.values()) if state.is_due(model)))
        self._report()

    async def follow(self) -> None:
        """Read which models there are, and which versions answer, of each model that has several."""
        state, expected, asked_at = self.state, self.state.expected, self.state.clock()
        try:
            index = await self.endpoint.index()
        except TritonUnreachable as exc:
            for name in [model.name for model in state.models.values() if model.sound]:
                state.suspect(name, exc, asked_at)  # the next probe of a model at rest may be far
            return  # what is known stays
        except GatewayError:
            return
        if not state.recovering:  # a model that is being reloaded is not missing
            expected.update(index, asked_at)
        state.forget_unloaded({model.name for model in index.models if model.state in {READY, LOADING}})
        with contextlib.suppress(GatewayError):
            await self.discover(index)
        names = {model.name for model in index.models if model.state == READY}
        several = names & {name.rpartition(".v")[0] for name in names}
        for name in sorted(several | expected.rollouts.keys()):
            try:
                config = await self.endpoint.config(name)
            except ModelNotFound:
                config = ModelConfig(name=name)
            except GatewayError:
                continue  # it is being loaded: what is known stays
            if expected.follow(config):
                self.model_changed(name)
        self._report()

    async def discover(self, index: RepositoryIndexResponse) -> None:
        """Add the ensembles that Triton lists as ready and that keep the contract to the probed models."""
        ready = {model.name for model in index.models if model.state == READY}
        self._no_ensembles &= ready  # another model may be loaded under the same name
        for name in sorted(ready - self._no_ensembles - self.state.models.keys()):
            config = await self.endpoint.config(name)
            if self.codecs.takes_images(config):
                self.state.models.setdefault(name, ProbedModel(name))
            else:
                self._no_ensembles.add(name)

    async def add(self, name: str) -> GatewayError | None:
        """Probe a model that has just been loaded, so that calls find it; returns the probe's error, if it fails."""
        model = self.state.models.setdefault(name, ProbedModel(name))
        await self.probe(model)
        await self.follow()
        return model.error

    async def probe(self, model: ProbedModel) -> None:
        """Send a tiny image through a model and record the result; the first time, check its configuration."""
        model.suspected = False
        sent_at = self.state.clock()
        error: GatewayError | None = None
        try:
            if not model.checked:
                await self._check(model)
            await self._infer(model)
        except GatewayError as exc:
            error = exc
        self.state.record(model, error, sent_at)

    async def fails(self, models: Iterable[ProbedModel], timeout_seconds: float | None = None) -> bool:
        """Probe all instances of the models now: whether any fails.

        `timeout_seconds` limits each probe, by default as the schedule does. Raises DeadlineExceeded, or another
        GatewayError if a model cannot be reached.
        """
        for model in models:
            for _ in range(2 * model.instances):  # Triton gives requests to its instances in rotation
                sent_at = self.state.clock()
                try:
                    await self._infer(model, timeout_seconds)
                except (StubDied, InferenceFailed) as exc:
                    self.state.suspect(model.name, exc, sent_at)
                    return True
        return False

    def forget_metrics(self) -> None:
        """Remove the metrics of this Triton."""
        metrics.forget(metrics.TRITON_READY, self.state.address)
        for name, _ in self._reported_missing:
            metrics.forget(metrics.MODEL_MISSING, self.state.address, name)

    async def _repeat(self, action: Action, pause_seconds: float) -> None:
        state, woken = self.state, asyncio.Event()
        state.wakers.append(woken)
        while True:
            woken.clear()
            try:
                await action()
            except Exception:
                metrics.WATCH_FAULTS.inc()
                log.exception("watch_fault", triton=state.address)
            seconds = pause_seconds * random.uniform(0.85, 1.15)  # noqa: S311  # spreads the gateways' probes
            if state.failing:
                seconds = min(state.schedule.quick_seconds / (5 if state.starting else 1), seconds)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await woken.wait()

    async def _infer(self, model: ProbedModel, timeout_seconds: float | None = None) -> None:
        metrics.PROBES.inc()
        deadline = Deadline.after(timeout_seconds or self.state.schedule.timeout_seconds)
        call = Call([model.codec.probe()], model.name, "", None, deadline, "readiness")
        await self.endpoint.infer(call, class_count=1, codec=model.codec)

    async def _check(self, model: ProbedModel) -> None:
        await self.endpoint.fetch_server_metadata()  # the address may have another Triton now
        config = await self.endpoint.config(model.name)
        model.codec = self.codecs.of(config)
        configs = await self.endpoint.step_configs(config)
        steps = tuple(Step(each.model_name, each.model_version) for each in config.ensemble_scheduling.step)
        model.steps = steps or (Step(model.name),)
        counts = (sum(max(1, group.count) for group in step.instance_group) for step in configs)
        model.instances = min(16, max(1, *counts))
        found_sizes = tuple(map(sizes, configs))
        if found_sizes != model.sizes:
            model.sizes = found_sizes
            log.info("instances", triton=self.state.address, model=model.name, steps=found_sizes)
        holding_back = (each.name for each in configs if has_queue_policy(each))
        model.warnings = (
            *model.codec.limitations(configs[-1]),
            *(f"{name}/config.pbtxt: {HOLDS_BACK}; {REMEDY}" for name in holding_back),
        )
        model.checked = True

    def _report(self) -> None:
        """Log and count what has changed."""
        state = self.state
        for warning in state.warnings:
            if warning not in self._reported_warnings:
                log.warning("contract", triton=state.address, problem=warning)
        self._reported_warnings = state.warnings
        self._report_missing()
        for name in self._reported_ready.keys() - state.models.keys():
            del self._reported_ready[name]
            self.model_changed(name)
        for model in () if state.starting else state.models.values():
            ready = state.is_ready(model)
            if model.tried_at is not None and self._reported_ready.get(model.name) != ready:
                self._reported_ready[model.name] = ready
                self.model_changed(model.name)
                if model is state.default:
                    metrics.TRITON_READY.labels(state.address).set(ready)
                event = {"triton": state.address, "model": model.name}
                if ready:
                    log.info("triton_ready", **event)
                elif (error := model.error) is not None:
                    expected = isinstance(error, TritonUnreachable | ModelUnavailable)
                    level = log.warning if expected else log.error
                    level("triton_not_ready", **event, code=error.code, cause=str(error.__cause__ or error))

    def _report_missing(self) -> None:
        address, missing = self.state.address, {(each.name, each.version): each for each in self.state.expected.missing}
        for key, each in missing.items():
            before = self._reported_missing.get(key)
            if before is None or before.reason != each.reason:
                fields = {"model": each.name, "version": each.version, "state": each.state, "cause": each.reason}
                log.warning("model_missing", triton=address, **fields)
                self.state.wake()
        names, names_before = ({name for name, _ in keys} for keys in (missing, self._reported_missing))
        for name in names ^ names_before:
            metrics.MODEL_MISSING.labels(address, name).set(name in names)
            if name not in names:
                log.info("model_not_missing", triton=address, model=name)
        self._reported_missing = missing
