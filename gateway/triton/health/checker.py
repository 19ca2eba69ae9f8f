"""The health checker of one Triton: it probes the models with real inferences and has failing models recovered."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Collection

import structlog
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import RepositoryIndexResponse

from gateway import metrics
from gateway.errors import GatewayError, ModelNotFound, ModelUnavailable, TritonUnreachable
from gateway.inference.backend import EndpointHealth, ModelState
from gateway.triton.client import TritonEndpoint
from gateway.triton.health.probes import Probes
from gateway.triton.health.recovery import ModelRecovery
from gateway.triton.health.reloading import ModelReloader
from gateway.triton.health.state import READY, HealthState, ModelHealthState
from gateway.triton.wire import Codecs

log = structlog.get_logger("gateway")


class HealthChecker:
    """Runs four loops over the `state` of one Triton: probes, rollouts, reloads of failing and loads of missing models.

    Each probe has a new image, so that no cache can answer in place of the model. The results of clients' requests
    count as well: answers make probes rarer, failures bring the next probe forward. Without a `reloader`, nothing
    is reloaded or loaded. `model_changed` gets the name of each model whose readiness or rollout has changed.
    """

    def __init__(
        self,
        endpoint: TritonEndpoint,
        state: HealthState,
        *,
        reloader: ModelReloader | None = None,
        model_changed: Callable[[str], None] = lambda _: None,
        codecs: Codecs | None = None,
    ) -> None:
        self.state = state
        self._endpoint = endpoint
        self._probes = Probes(endpoint, state, codecs or Codecs())
        self._recovery = ModelRecovery(state, self._probes, reloader) if reloader else None
        self._model_changed = model_changed
        self._reported_missing: dict[tuple[str, str], ModelState] = {}
        """The missing models and versions that were logged, by name and version."""
        self._reported_warnings: tuple[str, ...] = ()
        self._reported_ready: dict[str, bool] = {}

    async def run(self) -> None:
        """Run until cancelled; exceptions are logged and counted. Probes continue during reloads."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._repeat(self.probe_all, self.state.probe_soon))
            # A separate task, since a probe may take seconds.
            group.create_task(self._repeat(self.follow, asyncio.Event(), self.state.schedule.follow_seconds))
            if self._recovery:
                group.create_task(self._repeat(self.recover, self.state.recovery_needed))
                # A separate task, since a load may take minutes.
                group.create_task(self._repeat(self.load_missing, self.state.models_missing))

    async def probe_all(self) -> None:
        """Probe every model that is due."""
        state = self.state
        if not state.probed:
            await self.follow()  # before any model counts as ready
        elif any(map(state.is_due, state.models.values())):
            with contextlib.suppress(GatewayError):
                await self._update(await self._endpoint.index())
        await asyncio.gather(*(self._probes.run(model) for model in list(state.models.values()) if state.is_due(model)))
        state.forget_unloaded()
        if self._recovery is None:
            # A probe is the only way to find out whether the operator has restarted a process.
            state.dead.clear()
        self._report()
        if state.failing:
            state.recovery_needed.set()
        if state.expected.missing:
            state.models_missing.set()

    async def follow(self) -> None:
        """Read which models there are, and which versions answer, of each model that has several."""
        expected, asked_at = self.state.expected, self.state.clock()
        try:
            index = await self._endpoint.index()
        except TritonUnreachable as exc:
            for name in [model.name for model in self.state.models.values() if model.sound]:
                self.state.suspect(name, exc, asked_at)  # the next probe of a model at rest may be far
            return  # what is known stays
        except GatewayError:
            return
        names = await self._update(index)
        several = names & {name.rpartition(".v")[0] for name in names}
        for name in sorted(several | expected.rollouts.keys()):
            try:
                config = await self._endpoint.config(name)
            except ModelNotFound:
                config = ModelConfig(name=name)
            except GatewayError:
                continue  # it is being loaded: what is known stays
            if expected.follow(config):
                self._model_changed(name)

    async def _update(self, index: RepositoryIndexResponse) -> set[str]:
        """Take notice of Triton's models; returns those that are ready."""
        ready = {model.name for model in index.models if model.state == READY}
        if not self.state.recovering:  # a model that is being reloaded is not missing
            self.state.expected.update(index)
        self.state.forget_evicted(ready)
        with contextlib.suppress(GatewayError):
            await self._probes.discover(index)
        return ready

    async def recover(self) -> None:
        """Reload the models that fail."""
        if self._recovery:
            await self._recovery.reload_failing()
            self._report()

    async def load_missing(self) -> None:
        """Load models that should be served and are not."""
        if self._recovery:
            await self._recovery.load_missing()

    async def discover(self, index: RepositoryIndexResponse) -> None:
        """Add the ensembles that Triton lists as ready to the probed models."""
        await self._probes.discover(index)

    async def add(self, name: str) -> GatewayError | None:
        """Probe a model that has just been loaded, so that calls find it; returns the probe's error, if it fails."""
        model = self.state.models.setdefault(name, ModelHealthState(name))
        await self._probes.run(model)
        await self.follow()
        self._report()
        return model.error

    async def fails_anywhere(self, model_name: str, model_version: str) -> bool:
        """Probe all instances of a model now: whether any of them fails; raises GatewayError as `infer` does."""
        for model in self.state.serving(model_name, model_version):
            if error := await self._probes.failure(model):
                self.state.suspect(model.name, error, float("inf"))
                return True
        return False

    def health(self) -> EndpointHealth:
        """The health of this Triton and its models."""
        return self.state.health(self._recovery.status if self._recovery else "off")

    def forget(self, names: Collection[str]) -> None:
        """Stop probing models that were unloaded on purpose."""
        self.state.forget(names)
        self._report()

    def forget_metrics(self) -> None:
        """Remove the metrics of this Triton."""
        metrics.forget(metrics.TRITON_READY, self.state.address)
        for name, _ in self._reported_missing:
            metrics.forget(metrics.MODEL_MISSING, self.state.address, name)

    async def _repeat(
        self, action: Callable[[], Awaitable[None]], wake: asyncio.Event, interval_seconds: float = 0.0
    ) -> None:
        schedule = self.state.schedule
        while True:
            wake.clear()
            try:
                await action()
            except Exception:
                metrics.WATCH_FAULTS.inc()
                log.exception("watch_fault", triton=self.state.address)
            seconds = interval_seconds or schedule.interval_seconds
            seconds *= random.uniform(0.85, 1.15)  # noqa: S311  # spreads the gateways' probes
            if self.state.failing:
                seconds = min(schedule.quick_seconds / (5 if self.state.starting else 1), seconds)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await wake.wait()

    def _report(self) -> None:
        """Log and count changes of readiness."""
        self._report_warnings()
        self._report_missing()
        for name in self._reported_ready.keys() - self.state.models.keys():
            del self._reported_ready[name]
            self._model_changed(name)
        for model in () if self.state.starting else self.state.models.values():
            ready = self.state.is_ready(model)
            if model.last_probe is not None and self._reported_ready.get(model.name) != ready:
                self._reported_ready[model.name] = ready
                self._model_changed(model.name)
                if model is self.state.default:
                    metrics.TRITON_READY.labels(self.state.address).set(ready)
                self._log(model, ready=ready)

    def _report_warnings(self) -> None:
        warnings = self.state.expected.warnings
        for warning in warnings:
            if warning not in self._reported_warnings:
                log.warning("contract", triton=self.state.address, problem=warning)
        self._reported_warnings = warnings

    def _report_missing(self) -> None:
        missing = {(each.name, each.version): each for each in self.state.expected.missing}
        for key, each in missing.items():
            before = self._reported_missing.get(key)
            if before is None or before.reason != each.reason:
                log.warning(
                    "model_missing",
                    triton=self.state.address,
                    model=each.name,
                    version=each.version,
                    state=each.state,
                    cause=each.reason,
                )
        names, names_before = ({name for name, _ in keys} for keys in (missing, self._reported_missing))
        for name in names ^ names_before:
            metrics.MODEL_MISSING.labels(self.state.address, name).set(name in names)
            if name not in names:
                log.info("model_not_missing", triton=self.state.address, model=name)
        self._reported_missing = missing

    def _log(self, model: ModelHealthState, *, ready: bool) -> None:
        if ready:
            log.info("triton_ready", triton=self.state.address, model=model.name)
        elif (error := model.error) is not None:
            level = log.warning if isinstance(error, TritonUnreachable | ModelUnavailable) else log.error
            level(
                "triton_not_ready",
                triton=self.state.address,
                model=model.name,
                code=error.code,
                cause=str(error.__cause__ or error),
            )
