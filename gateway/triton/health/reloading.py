"""Reloads models whose process died or that fail every request; Triton 2.51 to 26.07 does not restart them."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Container
from contextlib import AbstractContextManager
from enum import Enum, auto

import structlog

from gateway import metrics
from gateway.errors import GatewayError
from gateway.inference.backend import ModelState
from gateway.triton.endpoint import TritonEndpoint
from gateway.triton.error_table import LoadNotAllowed
from gateway.triton.health.expected import LOADING, READY, faults
from gateway.triton.health.machine_lock import machine_lock

log = structlog.get_logger("gateway")

FIRST_BACKOFF_SECONDS, LAST_BACKOFF_SECONDS, INEFFECTIVE_BACKOFF_SECONDS = 1.0, 60.0, 600.0
JITTER_SECONDS = 0.3
"""Upper bound of a random delay: gateways on other machines, which share no lock, then see the first one's reload."""
LOAD_JITTER = 0.15
"""Random variation of the intervals between attempts to load, as a fraction."""
NOT_ALLOWED = (
    "this Triton does not accept requests to load models: restart it, or start it with "
    "--model-control-mode=explicit --load-model=*"
)


class ReloadOutcome(Enum):
    """The outcome of an attempt to reload."""

    RELOADED = auto()
    FAILED = auto()
    TOO_EARLY = auto()
    OTHERS = auto()
    """Another gateway is reloading."""
    STALE = auto()
    """Nothing fails any more once the lock is held."""


class ModelReloader:
    """Unloads and loads the models of one Triton. It needs --model-control-mode=explicit.

    Gateways on one machine share a lock. Gateways on different machines wait up to JITTER_SECONDS, do nothing where a
    model is not READY, and probe once more before they reload. Each set of steps has its own backoff, so that a model
    that does not recover does not delay the recovery of another.
    """

    def __init__(
        self,
        endpoint: TritonEndpoint,
        *,
        jitter_seconds: float = JITTER_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        take_lock: Callable[[str], AbstractContextManager[bool]] = machine_lock,
    ) -> None:
        self.status = "idle"
        self._endpoint = endpoint
        self._jitter_seconds = jitter_seconds
        self._clock = clock
        self._take_lock = take_lock
        self._backoffs: dict[tuple[str, ...], tuple[float, float]] = {}
        """By set of steps: the time before which it is not reloaded, and the next interval in seconds."""
        self._load_backoffs: dict[str, tuple[float, float]] = {}
        """The same for loading missing models."""
        self._left_unloaded: set[str] = set()
        """Steps that this gateway has unloaded and could not load: no other gateway loads them."""

    async def reload(
        self,
        steps: Collection[str],
        ensembles: Collection[str],
        still_fails: Callable[[], Awaitable[bool]],
        *,
        rolling: bool = False,
    ) -> ReloadOutcome:
        """Unload and load `steps`, and then load those of the `ensembles` over them that were in service.

        With `rolling` nothing is unloaded: the old instances answer until the new ones are loaded.
        """
        key = tuple(sorted(steps))
        if self._clock() < self._backoffs.get(key, (0.0, 0.0))[0]:
            return ReloadOutcome.TOO_EARLY
        with self._take_lock(self._endpoint.address) as locked:
            await asyncio.sleep(random.uniform(0, self._jitter_seconds))  # noqa: S311  # no secret
            if not locked:
                self.status = "another gateway is reloading"
                return ReloadOutcome.OTHERS
            try:
                in_service = await self._in_service()
            except GatewayError:
                return ReloadOutcome.TOO_EARLY  # Triton is unreachable; after a restart it has new processes
            if not self._left_unloaded.intersection(steps):
                if not in_service.issuperset(steps):
                    self.status = "another gateway is reloading"
                    return ReloadOutcome.OTHERS
                if not await still_fails():
                    self.status = "idle"
                    return ReloadOutcome.STALE
                if not (await self.states()).issuperset(steps):  # still_fails may take seconds
                    self.status = "another gateway is reloading"
                    return ReloadOutcome.OTHERS
            # Unloaded models must be loaded again, even if this gateway stops meanwhile.
            reloading = asyncio.ensure_future(
                self._reload(key, sorted(in_service.intersection(ensembles)), rolling=rolling)
            )
            try:
                return await asyncio.shield(reloading)
            except asyncio.CancelledError:
                await asyncio.wait({reloading})
                raise

    async def load(self, model: str) -> bool:
        """Load a model that should be served and is not; returns whether a load was attempted.

        With an ensemble, Triton loads its steps; with a step, the ensembles that wait for it. Each model has its own
        backoff between attempts, up to LAST_BACKOFF_SECONDS. Raises LoadNotAllowed.
        """
        if self._clock() < self._load_backoffs.get(model, (0.0, 0.0))[0]:
            return False
        # A lock for each model: a load that hangs must not delay the others.
        with self._take_lock(f"{self._endpoint.address} {model}") as locked:
            await asyncio.sleep(random.uniform(0, self._jitter_seconds))  # noqa: S311  # no secret
            if not locked:
                return False
            try:
                rows = [each for each in (await self._endpoint.index()).models if each.name == model]
            except GatewayError:
                return False  # Triton is unreachable
            states = [ModelState(each.name, each.version, each.state, each.reason) for each in rows]
            if not faults(model, states) or any(each.state == LOADING for each in states):
                return False
            self.status = f"loading {model}"
            log.warning("loading_missing", triton=self._endpoint.address, model=model)
            _, seconds = self._load_backoffs.get(model, (0.0, FIRST_BACKOFF_SECONDS))
            try:
                await self._endpoint.load(model)
            except GatewayError as exc:
                self._load_failed(model, exc)
                if isinstance(exc, LoadNotAllowed):
                    raise
            else:
                self.status = f"loaded {model}"
            finally:
                pause_seconds = seconds * random.uniform(1 - LOAD_JITTER, 1 + LOAD_JITTER)  # noqa: S311  # no secret
                self._load_backoffs[model] = (self._clock() + pause_seconds, min(2 * seconds, LAST_BACKOFF_SECONDS))
        return True

    def reset_backoff_except(self, missing: Container[str]) -> None:
        """Reset the load backoff of every model that is not in `missing`."""
        self._load_backoffs = {model: kept for model, kept in self._load_backoffs.items() if model in missing}

    async def states(self) -> set[str]:
        """The models of which a version is READY; empty if Triton does not answer."""
        try:
            return await self._in_service()
        except GatewayError:
            return set()

    def report_effective(self, steps: Collection[str]) -> None:
        """Reset the backoff of steps that answer after their reload."""
        self._backoffs[tuple(sorted(steps))] = (self._clock() + FIRST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS)

    def report_ineffective(self, steps: Collection[str], models: Collection[str]) -> None:
        """Report models that still fail after a reload of their steps, and retry at growing intervals."""
        self.status = f"reloading does not repair {', '.join(sorted(models))}: restart this Triton"
        metrics.HEALINGS.labels("in vain").inc()
        log.error("healing_in_vain", triton=self._endpoint.address, models=sorted(models))
        self._back_off(tuple(sorted(steps)), INEFFECTIVE_BACKOFF_SECONDS)

    async def _reload(self, steps: tuple[str, ...], ensembles: Collection[str], *, rolling: bool) -> ReloadOutcome:
        started = self._clock()
        self.status = f"reloading {', '.join(steps)}"
        log.warning("healing", triton=self._endpoint.address, models=list(steps))
        try:
            for step in steps:
                if rolling:
                    await self._endpoint.force_reload(step)
                    continue
                self._left_unloaded.add(step)
                await self._endpoint.unload(step)
                await self._endpoint.load(step)
                self._left_unloaded.discard(step)
            for ensemble in ensembles:
                await self._endpoint.load(ensemble)
        except GatewayError as exc:
            self._failed(steps, exc)
            return ReloadOutcome.FAILED
        seconds = self._clock() - started
        self.status = f"reloaded in {seconds:.1f} s"
        metrics.HEALINGS.labels("healed").inc()
        log.info("healed", triton=self._endpoint.address, seconds=round(seconds, 3))
        # Until report_effective resets it, the backoff slows down reloads of a model that dies at once.
        self._back_off(steps)
        return ReloadOutcome.RELOADED

    async def _in_service(self) -> set[str]:
        return {model.name for model in (await self._endpoint.index()).models if model.state == READY}

    def _failed(self, key: tuple[str, ...], error: GatewayError) -> None:
        self.status = f"failed: {error.message}"
        metrics.HEALINGS.labels("failed").inc()
        log.error("healing_failed", triton=self._endpoint.address, cause=str(error.__cause__ or error))
        self._back_off(key)

    def _load_failed(self, model: str, error: GatewayError) -> None:
        self.status = NOT_ALLOWED if isinstance(error, LoadNotAllowed) else f"{model} cannot be loaded, retrying"
        log.error("loading_failed", triton=self._endpoint.address, model=model, cause=str(error.__cause__ or error))

    def _back_off(self, key: tuple[str, ...], longest: float = LAST_BACKOFF_SECONDS) -> None:
        _, seconds = self._backoffs.get(key, (0.0, FIRST_BACKOFF_SECONDS))
        self._backoffs[key] = (self._clock() + seconds, max(seconds, min(2 * seconds, longest)))
