"""Reloads failing models and loads missing ones; Triton 2.51 to 26.07 does not restart a process that died."""

import asyncio
import random
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from gateway import metrics
from gateway.errors import DeadlineExceeded, GatewayError
from gateway.triton.client import LoadNotAllowed
from gateway.triton.health.checker import Action, HealthChecker
from gateway.triton.health.state import (
    LOADING,
    NOT_LISTED,
    READY,
    UNLOADED,
    ProbedModel,
    Step,
    faults,
    has_failed,
    rows_of,
)
from gateway.values.files import machine_lock

log = structlog.get_logger("gateway")

FIRST_BACKOFF_SECONDS, LAST_BACKOFF_SECONDS, INEFFECTIVE_BACKOFF_SECONDS = 1.0, 60.0, 600.0
JITTER_SECONDS = 0.3
"""Upper bound of a random delay: gateways on other machines, which share no lock, then see the first one's reload."""
QUICK_SECONDS = 0.3
"""A probe that takes longer confirms a failure. Most networks take milliseconds; for a dead process, Triton takes 1 to
2 s."""
CONFIRMATIONS, CONFIRMATION_PAUSE_SECONDS = 25, 0.1
"""How often a failure is looked for before it counts as repaired by another gateway."""
OTHERS_RELOAD = "another gateway is reloading"
NOT_ALLOWED = (
    "this Triton does not accept requests to load models: restart it, or start it with "
    "--model-control-mode=explicit --load-model=*"
)


@dataclass(slots=True)
class Backoff:
    """Growing intervals between attempts, for each key by itself."""

    clock: Callable[[], float]
    _next: dict[Hashable, tuple[float, float]] = field(default_factory=dict)
    """By key: the time of the next attempt, and the interval after it in seconds."""

    def is_due(self, key: Hashable) -> bool:
        """Whether an attempt may be made now."""
        return key not in self._next or self.clock() >= self._next[key][0]

    def delay(self, key: Hashable, longest_seconds: float = LAST_BACKOFF_SECONDS) -> None:
        """Delay the next attempt: the interval doubles each time, up to `longest_seconds`."""
        _, seconds = self._next.get(key, (0.0, FIRST_BACKOFF_SECONDS))
        self._next[key] = (self.clock() + seconds, max(seconds, min(2 * seconds, longest_seconds)))

    def forget(self, key: Hashable) -> None:
        """Allow an attempt now."""
        self._next.pop(key, None)

    def keep(self, keys: Collection[Hashable]) -> None:
        """Allow an attempt now for every other key."""
        self._next = {key: times for key, times in self._next.items() if key in keys}


@dataclass(eq=False)
class RecoveringChecker(HealthChecker):
    """A health checker that also reloads and loads models. It needs --model-control-mode=explicit.

    Gateways on one machine share a lock. Gateways on different machines wait up to JITTER_SECONDS, and reload only if a
    probe fails and each step is still READY. Each model has its own backoff, so that one that does not recover does not
    delay another.
    """

    def __post_init__(self) -> None:
        self.state.healing = "idle"
        self._reloads, self._loads = Backoff(self.state.clock), Backoff(self.state.clock)
        """By the names of steps; by missing model."""

    def actions(self) -> Mapping[Action, float]:
        """As HealthChecker's; a reload and a load may take minutes."""
        pause_seconds = self.state.schedule.interval_seconds
        return {**super().actions(), self.reload_failing: pause_seconds, self.load_missing: pause_seconds}

    async def reload_failing(self) -> None:
        """Reload models with a dead process, and models that failed several probes in a row."""
        state = self.state
        for name in sorted({step.name for step in state.dead}):
            await self._reload([step for step in state.dead if step.name == name])
        sound = {step for model in state.models.values() if model.sound for step in model.steps}
        for failing in list(state.models.values()):
            if failing.failures >= state.schedule.failures and failing.steps:
                # A step through which other models answer is not at fault, unless this applies to every step.
                own = [step for step in failing.steps if step not in sound]
                await self._reload(own or failing.steps)

    async def load_missing(self) -> None:
        """Load models that should be served and are not, at growing intervals for as long as it takes.

        With an ensemble, Triton loads its steps; with a step, the ensembles that wait for it.
        """
        expected, now = self.state.expected, self.state.clock()
        missing = {each.name: each for each in expected.missing if each.reason != NOT_LISTED}
        self._loads.keep(missing.keys())
        for name in [name for name, each in missing.items() if each.reason == UNLOADED]:
            # Another gateway may be reloading it.
            if now < expected.orphans.setdefault(name, now + self.state.schedule.orphaned_seconds):
                del missing[name]
        tried = [await self._load(name) for name, each in missing.items() if has_failed(each)]
        if not any(tried):  # else a model may need a failed one, and Triton then loads it with that one
            for name in [name for name, each in missing.items() if not has_failed(each)]:
                await self._load(name)

    async def _load(self, model: str) -> bool:
        """Load a model that should be served and is not; returns whether that was attempted."""
        if not self._loads.is_due(model):
            return False
        # A lock for each model: a load that hangs must not delay the others.
        with machine_lock(f"{self.state.address} {model}") as held:
            await asyncio.sleep(random.uniform(0, JITTER_SECONDS))  # noqa: S311  # no secret
            try:
                versions = rows_of(await self.endpoint.index()).get(model, [])
            except GatewayError:
                return False  # Triton is unreachable
            if not held or not faults(model, versions) or any(each.state == LOADING for each in versions):
                return False
            self.state.healing = f"loading {model}"
            log.warning("loading_missing", triton=self.state.address, model=model)
            try:
                await self.endpoint.load(model)
            except GatewayError as exc:
                self._failed("loading_failed", exc, f"{model} cannot be loaded, retrying", model=model)
                if isinstance(exc, LoadNotAllowed):
                    self.state.expected.all = True  # Triton loads them by itself
            else:
                self.state.healing = f"loaded {model}"
            self._loads.delay(model)
        return True

    async def _reload(self, wanted: Collection[Step]) -> None:
        """Reload steps unless another gateway does, and probe the ensembles over them; a stateful model has none."""
        state, names = self.state, tuple(sorted({step.name for step in wanted}))
        if not self._reloads.is_due(names):
            return
        using = [model for model in state.models.values() if any(step.name in names for step in model.steps)]
        affected = [model for model in using if any(step.meets(wanted) for step in model.steps)] or using
        # Unloading would take other versions that answer out of service.
        rolling = any(model.sound and not state.is_affected(model) for model in using if model not in affected)
        state.recovering = {model.name for model in (affected if rolling else using)}
        reloaded = False
        try:
            with machine_lock(state.address) as held:
                await asyncio.sleep(random.uniform(0, JITTER_SECONDS))  # noqa: S311  # no secret
                fails = held and await self._still_fails(affected)
                ready = {model.name for model in (await self.endpoint.index()).models if model.state == READY}
                if not held or not ready.issuperset(names):
                    state.healing = OTHERS_RELOAD
                    orphaned_at = state.clock() + state.schedule.orphaned_seconds
                    state.expected.orphans.update(dict.fromkeys(names, orphaned_at))
                elif not fails:
                    state.healing = "idle"
                else:
                    # Unloaded models must be loaded again, even if this gateway stops meanwhile.
                    replacing = asyncio.ensure_future(self._replace(names, using, ready, rolling=rolling))
                    try:
                        reloaded = await asyncio.shield(replacing)
                    except asyncio.CancelledError:
                        await asyncio.wait({replacing})
                        raise
            state.dead = {step for step in state.dead if step.name not in names}
            state.recovered_at = state.clock()
            for model in using:
                await self.probe(model)
            if reloaded:
                self._report_effect(names, sorted(model.name for model in using if not model.sound))
        except GatewayError:
            pass  # Triton is unreachable; after a restart it has new processes
        finally:
            state.recovering = set()
        self._report()  # not after a cancellation: this Triton may have been removed

    async def _still_fails(self, models: Collection[ProbedModel]) -> bool:
        """Whether a probe fails: the request that failed may have been sent before another gateway's reload."""
        if not models:
            return True  # a request found the process of a stateful model dead, which no probe reaches
        for attempt in range(CONFIRMATIONS):
            # A dead process keeps a client's request for 1 to 2 s; meanwhile live processes take the probes.
            await asyncio.sleep(CONFIRMATION_PAUSE_SECONDS if attempt else 0.0)
            for model in models:
                try:
                    if await self.fails([model], QUICK_SECONDS):
                        return True
                except DeadlineExceeded:
                    return True
                except GatewayError:
                    pass  # unloaded or unreachable: another gateway may be reloading it
        return False

    async def _replace(
        self, names: tuple[str, ...], using: Sequence[ProbedModel], ready: Collection[str], *, rolling: bool
    ) -> bool:
        """Give steps new processes, and load the ensembles over them that were `ready`; returns whether that succeeded.

        If `rolling`, the old processes answer until the new ones do; without memory for both, the steps are unloaded.
        """
        state, began_at = self.state, self.state.clock()
        ensembles = sorted(model.name for model in using if model.name in ready)
        state.healing = f"reloading {', '.join(names)}"
        log.warning("healing", triton=state.address, models=list(names))
        for unloads in (False, True) if rolling else (True,):
            try:
                if unloads:
                    state.recovering = {model.name for model in using}
                for name in names:
                    if unloads:
                        await self.endpoint.unload(name)
                        await self.endpoint.load(name)
                    else:
                        await self.endpoint.force_reload(name)
                for ensemble in ensembles:
                    await self.endpoint.load(ensemble)
            except GatewayError as exc:
                metrics.HEALINGS.labels("failed").inc()
                self._failed("healing_failed", exc, f"failed: {exc.message}")
            else:
                seconds = state.clock() - began_at
                state.healing = f"reloaded in {seconds:.1f} s"
                metrics.HEALINGS.labels("healed").inc()
                log.info("healed", triton=state.address, seconds=round(seconds, 3))
                return True
        self._reloads.delay(names)
        # What this gateway has unloaded is missing, so that it is loaded once that is possible.
        state.expected.orphans.update(dict.fromkeys((*names, *ensembles), state.clock()))
        return False

    def _report_effect(self, names: tuple[str, ...], failing: Sequence[str]) -> None:
        """Report the ensembles that still fail after a reload, and retry at growing intervals."""
        if not failing:
            self._reloads.forget(names)
            return
        self.state.healing = f"reloading does not repair {', '.join(failing)}: restart this Triton"
        metrics.HEALINGS.labels("in vain").inc()
        log.error("healing_in_vain", triton=self.state.address, models=failing)
        self._reloads.delay(names, INEFFECTIVE_BACKOFF_SECONDS)

    def _failed(self, event: str, error: GatewayError, status: str, **fields: str) -> None:
        self.state.healing = NOT_ALLOWED if isinstance(error, LoadNotAllowed) else status
        log.error(event, triton=self.state.address, cause=str(error.__cause__ or error), **fields)
