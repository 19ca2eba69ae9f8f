"""Reloads models whose process died or that fail every request; Triton 2.51 to 26.07 does not restart them."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Container, Hashable
from contextlib import AbstractContextManager
from enum import Enum, auto

import structlog

from gateway import metrics
from gateway.errors import GatewayError
from gateway.inference.backend import ModelState
from gateway.triton.client import LoadNotAllowed, TritonEndpoint
from gateway.triton.health.state import LOADING, READY, faults
from gateway.values.files import machine_lock

log = structlog.get_logger("gateway")

FIRST_BACKOFF_SECONDS, LAST_BACKOFF_SECONDS, INEFFECTIVE_BACKOFF_SECONDS = 1.0, 60.0, 600.0
JITTER_SECONDS = 0.3
"""Upper bound of a random delay: gateways on other machines, which share no lock, then see the first one's reload."""
OTHERS_RELOAD = "another gateway is reloading"
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
    """Nothing fails any longer once the lock is held."""


class Backoff:
    """Growing intervals between attempts, for each key by itself."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next: dict[Hashable, tuple[float, float]] = {}
        """By key: the time of the next attempt, and the interval after it in seconds."""

    def is_due(self, key: Hashable) -> bool:
        """Whether an attempt may be made now."""
        return key not in self._next or self._clock() >= self._next[key][0]

    def delay(self, key: Hashable, longest_seconds: float = LAST_BACKOFF_SECONDS) -> None:
        """Delay the next attempt: the interval doubles each time, up to `longest_seconds`."""
        _, seconds = self._next.get(key, (0.0, FIRST_BACKOFF_SECONDS))
        self._next[key] = (self._clock() + seconds, max(seconds, min(2 * seconds, longest_seconds)))

    def reset(self, key: Hashable) -> None:
        """Begin again with the first interval."""
        self._next[key] = (self._clock() + FIRST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS)

    def reset_except(self, keys: Container[Hashable]) -> None:
        """Allow an attempt now for every key that is not in `keys`."""
        self._next = {key: kept for key, kept in self._next.items() if key in keys}


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
        self._reload_backoff, self._load_backoff = Backoff(clock), Backoff(clock)
        """By set of steps; by missing model."""
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
        """Unload and load `steps`, and then load the `ensembles` over them that were in service.

        With `rolling` nothing is unloaded: the old instances answer until the new ones are loaded.
        """
        key = tuple(sorted(steps))
        if not self._reload_backoff.is_due(key):
            return ReloadOutcome.TOO_EARLY
        with self._take_lock(self._endpoint.address) as held:
            await asyncio.sleep(random.uniform(0, self._jitter_seconds))  # noqa: S311  # no secret
            if not held:
                self.status = OTHERS_RELOAD
                return ReloadOutcome.OTHERS
            try:
                in_service = await self._in_service()
                if not self._left_unloaded.intersection(steps):
                    # still_fails may take seconds, in which another gateway may have begun.
                    if in_service.issuperset(steps) and not await still_fails():
                        self.status = "idle"
                        return ReloadOutcome.STALE
                    if not (await self._in_service()).issuperset(steps):
                        self.status = OTHERS_RELOAD
                        return ReloadOutcome.OTHERS
            except GatewayError:
                return ReloadOutcome.TOO_EARLY  # Triton is unreachable; after a restart it has new processes
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
        if not self._load_backoff.is_due(model):
            return False
        # A lock for each model: a load that hangs must not delay the others.
        with self._take_lock(f"{self._endpoint.address} {model}") as held:
            await asyncio.sleep(random.uniform(0, self._jitter_seconds))  # noqa: S311  # no secret
            if not held:
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
            try:
                await self._endpoint.load(model)
            except GatewayError as exc:
                allowed = not isinstance(exc, LoadNotAllowed)
                status = f"{model} cannot be loaded, retrying" if allowed else NOT_ALLOWED
                self._failed("loading_failed", exc, status, model=model)
                if not allowed:
                    raise
            else:
                self.status = f"loaded {model}"
            finally:
                self._load_backoff.delay(model)
        return True

    def reset_backoff_except(self, missing: Container[str]) -> None:
        """Reset the load backoff of every model that is not in `missing`."""
        self._load_backoff.reset_except(missing)

    def report_effect(self, steps: Collection[str], failing: Collection[str]) -> None:
        """Report the models that still fail after a reload of their steps, and retry at growing intervals.

        If none fails, the backoff of these steps is reset.
        """
        key = tuple(sorted(steps))
        if not failing:
            self._reload_backoff.reset(key)
            return
        self.status = f"reloading does not repair {', '.join(sorted(failing))}: restart this Triton"
        metrics.HEALINGS.labels("in vain").inc()
        log.error("healing_in_vain", triton=self._endpoint.address, models=sorted(failing))
        self._reload_backoff.delay(key, INEFFECTIVE_BACKOFF_SECONDS)

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
            metrics.HEALINGS.labels("failed").inc()
            self._failed("healing_failed", exc, f"failed: {exc.message}")
            self._reload_backoff.delay(steps)
            return ReloadOutcome.FAILED
        seconds = self._clock() - started
        self.status = f"reloaded in {seconds:.1f} s"
        metrics.HEALINGS.labels("healed").inc()
        log.info("healed", triton=self._endpoint.address, seconds=round(seconds, 3))
        # Until report_effect resets it, the backoff slows down reloads of a model that dies immediately.
        self._reload_backoff.delay(steps)
        return ReloadOutcome.RELOADED

    async def _in_service(self) -> set[str]:
        """The models of which a version is READY."""
        return {model.name for model in (await self._endpoint.index()).models if model.state == READY}

    def _failed(self, event: str, error: GatewayError, status: str, **fields: str) -> None:
        self.status = status
        log.error(event, triton=self._endpoint.address, cause=str(error.__cause__ or error), **fields)
