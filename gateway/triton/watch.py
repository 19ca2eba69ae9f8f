"""The truth about one Triton's health: a real inference, tried again and again, and what is done when it fails."""

import asyncio
import contextlib
import time
from datetime import UTC, datetime

import structlog

from gateway import metrics
from gateway.deadline import Deadline
from gateway.errors import ContractBroken, GatewayError, ModelUnavailable, TritonUnreachable
from gateway.inference.backend import Call, EndpointHealth, ModelState, Trial
from gateway.inference.probe import probe
from gateway.triton.batching import LOSES_INSTANCES, REMEDY
from gateway.triton.contract import breaches, has_labels
from gateway.triton.endpoint import Endpoint, step_configs
from gateway.triton.errors import StubDied
from gateway.triton.healing import Healer

log = structlog.get_logger("gateway")

QUICK_SECONDS = 0.5
"""The pace of trials while they fail."""
ORPHANED_SECONDS = 30.0
"""How long a model may stay unloaded before it is loaded again: whoever unloaded it to heal it has died over it."""


class Watch:
    """Tries an inference through the default model every `interval_seconds`, whatever the load.

    The image is a new one each time, so that no cache can answer in the model's place.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        model_name: str,
        interval_seconds: float,
        timeout_seconds: float,
        healer: Healer | None,
    ) -> None:
        self.endpoint = endpoint
        self._model_name = model_name
        self._interval_seconds = interval_seconds
        self._timeout_seconds = timeout_seconds
        self._healer = healer
        self._trial: Trial | None = None
        self._tried_monotonic = 0.0
        self._models: tuple[ModelState, ...] = ()
        self._warnings: tuple[str, ...] = ()
        self._contract_kept = False
        self._unavailable_since: float | None = None
        self._suspicion = asyncio.Event()
        self._dead_steps: set[str] = set()
        self._healing = False
        # Failures of requests that were sent before these moments say nothing of what is now.
        self._good_since, self._healed_at = 0.0, 0.0

    @property
    def ready(self) -> bool:
        """Whether the last trial succeeded, is not older than the next one should be, and nothing has failed since."""
        if self._trial is None or self._trial.error is not None:
            return False
        if self._healing or self._suspicion.is_set():
            return False
        age_seconds = time.monotonic() - self._tried_monotonic
        return age_seconds <= self._interval_seconds + 2 * self._timeout_seconds

    def health(self) -> EndpointHealth:
        """What is known."""
        return EndpointHealth(
            address=self.endpoint.address,
            ready=self.ready,
            trial=self._trial,
            models_not_ready=self._models,
            warnings=self._warnings,
            healing=self._healer.status if self._healer else "off",
        )

    def suspect(self, error: GatewayError, asked_at: float) -> None:
        """Take note of a request, sent at a moment of time.monotonic, that failed: trust only a trial from now on."""
        if isinstance(error, StubDied):
            if asked_at > self._healed_at:
                self._dead_steps.add(error.step)
                self._suspicion.set()
        elif asked_at > self._good_since:
            self._suspicion.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        was_ready: bool | None = None
        while True:
            self._suspicion.clear()
            await self.try_once()
            await self._heal()
            if self.ready != was_ready:
                was_ready = self.ready
                metrics.TRITON_READY.labels(self.endpoint.address).set(was_ready)
                self._tell()
            pace_seconds = self._interval_seconds if self.ready else min(QUICK_SECONDS, self._interval_seconds)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._suspicion.wait(), pace_seconds)

    async def try_once(self) -> None:
        """Send a tiny image through the model."""
        at, started = datetime.now(UTC), time.monotonic()
        error: GatewayError | None = None
        try:
            if not self._contract_kept:
                await self._check_contract()
            call = Call(probe(), self._model_name, "", None, Deadline.after(self._timeout_seconds), "readiness")
            await self.endpoint.infer(call, class_count=1)
        except GatewayError as exc:
            error = exc
            self._contract_kept = False  # what comes back may be another Triton, with another model
            if isinstance(exc, StubDied):
                self._dead_steps.add(exc.step)
        else:
            self._good_since = started
        self._models = () if error is None else await self._models_not_ready()
        self._tried_monotonic = time.monotonic()
        self._trial = Trial(at, self._tried_monotonic - started, error)

    async def _check_contract(self) -> None:
        await self.endpoint.learn_version()
        config = await self.endpoint.config(self._model_name)
        if found := breaches(config):
            raise ContractBroken(f"{self._model_name}/config.pbtxt: {'; '.join(found)}.")
        steps = await step_configs(self.endpoint, config)
        warnings = []
        if not has_labels(steps[-1]):
            warnings.append(f"{steps[-1].name}/config.pbtxt: output has no label_filename; ids are the labels")
        warnings += [f"{name}/config.pbtxt: {LOSES_INSTANCES}; {REMEDY}" for name in self.endpoint.losing(steps)]
        self._warnings = tuple(warnings)
        for warning in self._warnings:
            log.warning("contract", triton=self.endpoint.address, problem=warning)
        self._contract_kept = True

    async def _models_not_ready(self) -> tuple[ModelState, ...]:
        try:
            index = await self.endpoint.index()
        except GatewayError:
            return ()
        return tuple(
            ModelState(model.name, model.version, model.state, model.reason)
            for model in index.models
            if model.state != "READY"
        )

    async def _heal(self) -> None:
        if self._healer is None:
            self._dead_steps.clear()
        elif self._dead_steps:
            self._healing = True
            metrics.TRITON_READY.labels(self.endpoint.address).set(0)
            try:
                if await self._healer.reload(self._dead_steps, self._model_name):
                    self._dead_steps.clear()
                    self._healed_at = time.monotonic()
                    await self.try_once()
            finally:
                self._healing = bool(self._dead_steps)
        elif self._trial is not None and isinstance(self._trial.error, ModelUnavailable):
            self._unavailable_since = self._unavailable_since or time.monotonic()
            if time.monotonic() - self._unavailable_since > ORPHANED_SECONDS:
                await self._healer.load([state.name for state in self._models], self._model_name)
                self._unavailable_since = None
        else:
            self._unavailable_since = None

    def _tell(self) -> None:
        error = self._trial.error if self._trial else None
        if error is None:
            log.info("triton_ready", triton=self.endpoint.address)
        else:
            level = log.warning if isinstance(error, TritonUnreachable | ModelUnavailable) else log.error
            level(
                "triton_not_ready", triton=self.endpoint.address, code=error.code, cause=str(error.__cause__ or error)
            )
