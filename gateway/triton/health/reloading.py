"""Models whose process died, or that fail every request, are reloaded; Triton 2.51 to 26.07 leaves them as they are."""

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
"""Gateways on other machines, which no lock reaches, start at different moments and see what the first one does."""
LOAD_JITTER = 0.15
"""Share of an interval between attempts to load by which it varies."""
NOT_ALLOWED = (
    "this Triton lets no gateway load models: restart it, or start it with --model-control-mode=explicit --load-model=*"
)


class ReloadOutcome(Enum):
    """What became of an attempt to heal."""

    RELOADED = auto()
    FAILED = auto()
    TOO_EARLY = auto()
    OTHERS = auto()
    """Another gateway is at it."""
    STALE = auto()
    """Under one's own turn nothing fails any more."""


class ModelReloader:
    """Unloads and loads the models of one Triton. It needs --model-control-mode=explicit.

    Gateways on one machine hold a lock for it. Gateways elsewhere wait a random moment, keep away where a model is not
    READY, and try once more whether it fails at all. Each set of steps has intervals of its own: what cannot be mended
    does not hold up the mending of another.
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
        """For sets of steps the moment before which they are left alone, and the seconds of the next interval."""
        self._load_backoffs: dict[str, tuple[float, float]] = {}
        """The same for models that are not loaded."""
        self._left_unloaded: set[str] = set()
        """What was unloaded here and could not be loaded: no other gateway is at that."""

    async def reload(
        self,
        steps: Collection[str],
        ensembles: Collection[str],
        still_fails: Callable[[], Awaitable[bool]],
        *,
        rolling: bool = False,
    ) -> ReloadOutcome:
        """Unload and load `steps`, and then load those of the `ensembles` over them that were in service.

        `rolling` nothing is unloaded: other versions of the steps answer until new instances of all can.
        """
        key = tuple(sorted(steps))
        if self._clock() < self._backoffs.get(key, (0.0, 0.0))[0]:
            return ReloadOutcome.TOO_EARLY
        with self._take_lock(self._endpoint.address) as locked:
            await asyncio.sleep(random.uniform(0, self._jitter_seconds))  # noqa: S311  # no secret
            if not locked:
                self.status = "another gateway heals"
                return ReloadOutcome.OTHERS
            try:
                in_service = await self._in_service()
            except GatewayError:
                return ReloadOutcome.TOO_EARLY  # Triton is away, and what comes back is another one
            if not self._left_unloaded.intersection(steps):
                if not in_service.issuperset(steps):
                    self.status = "another gateway heals"
                    return ReloadOutcome.OTHERS
                if not await still_fails():
                    self.status = "idle"
                    return ReloadOutcome.STALE
                if not (await self.states()).issuperset(steps):  # that took a while
                    self.status = "another gateway heals"
                    return ReloadOutcome.OTHERS
            # What is unloaded is to be loaded, even when this gateway stops meanwhile.
            reloading = asyncio.ensure_future(
                self._reload(key, sorted(in_service.intersection(ensembles)), rolling=rolling)
            )
            try:
                return await asyncio.shield(reloading)
            except asyncio.CancelledError:
                await asyncio.wait({reloading})
                raise

    async def load(self, model: str) -> bool:
        """Load a model that should be served and is not; returns whether that was tried now.

        Triton loads an ensemble's steps with it, and with a step the ensembles that have waited for it. Each model has
        intervals of its own between attempts, up to LAST_BACKOFF_SECONDS. Raises LoadNotAllowed.
        """
        if self._clock() < self._load_backoffs.get(model, (0.0, 0.0))[0]:
            return False
        # A lock for each model: one whose load hangs must not delay the others.
        with self._take_lock(f"{self._endpoint.address} {model}") as locked:
            await asyncio.sleep(random.uniform(0, self._jitter_seconds))  # noqa: S311  # no secret
            if not locked:
                return False
            try:
                rows = [each for each in (await self._endpoint.index()).models if each.name == model]
            except GatewayError:
                return False  # Triton is away
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
        """Load any model but the `missing` ones without delay when it is missing the next time."""
        self._load_backoffs = {model: kept for model, kept in self._load_backoffs.items() if model in missing}

    async def states(self) -> set[str]:
        """The models of which a version is READY; empty where Triton does not answer."""
        try:
            return await self._in_service()
        except GatewayError:
            return set()

    def report_effective(self, steps: Collection[str]) -> None:
        """Steps that were reloaded have answered: the next death is a new one, and is mended as quickly."""
        self._backoffs[tuple(sorted(steps))] = (self._clock() + FIRST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS)

    def report_ineffective(self, steps: Collection[str], models: Collection[str]) -> None:
        """Models whose steps were reloaded still fail: say so, and try again at growing intervals."""
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
        self.status = f"healed in {seconds:.1f} s"
        metrics.HEALINGS.labels("healed").inc()
        log.info("healed", triton=self._endpoint.address, seconds=round(seconds, 3))
        # Until the models have report_effective themselves, a model that dies at once is not reloaded without pause.
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
