"""Recovery of one Triton: dead processes, models that fail every probe, models that are not loaded."""

import asyncio
from collections.abc import Collection

from gateway.errors import DeadlineExceeded, GatewayError
from gateway.triton.client import LoadNotAllowed
from gateway.triton.health.probes import Probes
from gateway.triton.health.reloading import ModelReloader, ReloadOutcome
from gateway.triton.health.state import NEVER, NOT_LISTED, UNLOADED, HealthState, ModelHealthState, Step, has_failed

FRESH_SECONDS = 1.0
"""A death seen within this time is confirmed by a probe that fails, or has no answer within QUICK_SECONDS."""
QUICK_SECONDS = 0.3
"""Most networks answer a probe within milliseconds; for a dead process, Triton takes 1 to 2 s."""
CONFIRMATIONS, CONFIRMATION_PAUSE_SECONDS = 25, 0.1
"""How often a death is looked for before it counts as repaired by another gateway."""


class ModelRecovery:
    """Decides by the health state which models are reloaded or loaded, and when; a ModelReloader does it."""

    def __init__(self, state: HealthState, probes: Probes, reloader: ModelReloader) -> None:
        self._state, self._probes, self._reloader = state, probes, reloader
        self._rolling_failed: set[tuple[Step, ...]] = set()
        """Steps whose rolling reload failed, for example for lack of memory."""
        self._left_to_others: dict[str, float] = {}
        """Steps that another gateway reloads, and since when."""
        self._reloading: set[str] = set()
        """Steps that are being reloaded, and the ensembles over them."""
        self._unloaded_since: dict[str, float] = {}
        """Expected models that were unloaded, and since when."""

    @property
    def status(self) -> str:
        """The current reload or load, or the result of the last one, in words."""
        return self._reloader.status

    async def reload_failing(self) -> None:
        """Reload models with a dead process, and models that failed several probes in a row."""
        state = self._state
        for step in sorted(state.dead):
            await self._reload((step,))
        sound = {step for model in state.models.values() if model.sound for step in model.steps}
        for failing in list(state.models.values()):
            if failing.failures >= state.schedule.failures and failing.steps:
                # A step through which other models answer is not at fault, unless this applies to every step.
                own = tuple(step for step in failing.steps if step not in sound)
                await self._reload(own or failing.steps)

    async def load_missing(self) -> None:
        """Load models that should be served and are not, at growing intervals for as long as it takes."""
        now, patience_seconds = self._state.clock(), self._state.schedule.orphaned_seconds
        expected, missing = self._state.expected, self._state.expected.missing
        for step, since in list(self._left_to_others.items()):
            if now - since > patience_seconds:
                expected.kept.add(step)  # has no effect if it is loaded by now
                del self._left_to_others[step]
        unloaded = {each.name for each in missing if each.reason == UNLOADED} - expected.kept
        self._unloaded_since = {name: self._unloaded_since.get(name, now) for name in unloaded}
        patient = {name for name, since in self._unloaded_since.items() if now - since <= patience_seconds}
        not_listed = {each.name for each in missing if each.reason == NOT_LISTED}
        self._reloader.reset_backoff_except({each.name for each in missing} - not_listed)
        left_alone = self._reloading | {step.name for step in self._state.dead} | patient | not_listed
        failed = False
        for each in sorted(missing, key=has_failed, reverse=True):
            if failed and not has_failed(each):
                return  # it may need a failed model, and Triton then loads it with that one
            if each.name not in left_alone:
                left_alone.add(each.name)
                try:
                    failed |= await self._reloader.load(each.name) and has_failed(each)
                except LoadNotAllowed:
                    expected.expect_all()
                    return

    async def _reload(self, wanted: tuple[Step, ...]) -> None:
        """Reload some steps, and probe the ensembles over them; a stateful model is a step of none."""
        state, names = self._state, {step.name for step in wanted}
        using = [model for model in state.models.values() if names & {step.name for step in model.steps}]
        affected = [model for model in using if any(step.meets(wanted) for step in model.steps)] or using
        rolling = self._can_roll(wanted, using, affected)
        state.recovering = {model.name for model in (affected if rolling else using)}
        self._reloading = {*names, *(model.name for model in using)}

        async def still_fails() -> bool:
            if not using:
                return True  # a request found its process dead, and no reload has succeeded since
            seen_at = max(state.dead.get(step, NEVER) for step in wanted)
            # The request that saw the death may have been sent before another gateway's reload.
            fresh = state.recovered_at < seen_at and state.clock() - seen_at < FRESH_SECONDS
            # A dead process keeps a client's request for 1 to 2 s; meanwhile live processes take the probes.
            for attempt in range(CONFIRMATIONS if fresh else 1):
                if attempt:
                    await asyncio.sleep(CONFIRMATION_PAUSE_SECONDS)
                for model in affected:
                    try:
                        if await self._probes.failure(model, QUICK_SECONDS if fresh else None):
                            return True
                    except DeadlineExceeded:
                        if fresh:
                            return True
                    except GatewayError:
                        pass  # unloaded or unreachable: another gateway may be reloading it
            return False

        try:
            ensembles = [model.name for model in using]
            outcome = await self._reloader.reload(names, ensembles, still_fails, rolling=rolling)
            if outcome is ReloadOutcome.FAILED:
                if rolling:
                    self._rolling_failed.add(wanted)
                else:
                    # This gateway has unloaded the steps, so it must load them.
                    state.dead.update(dict.fromkeys(wanted, state.clock()))
            if outcome in {ReloadOutcome.TOO_EARLY, ReloadOutcome.FAILED}:
                return
            self._rolling_failed.discard(wanted)
            for step in list(state.dead):
                if step in wanted or (outcome is ReloadOutcome.RELOADED and step.name in names):
                    del state.dead[step]
            state.recovered_at = state.clock()
            if outcome is ReloadOutcome.OTHERS:
                self._left_to_others.update(dict.fromkeys(names, state.clock()))
            for model in using:
                await self._probes.run(model)
            if outcome is ReloadOutcome.RELOADED:
                failing = [model.name for model in using if not model.sound]
                self._reloader.report_effect(names, failing)
        finally:
            state.recovering, self._reloading = set(), set()

    def _can_roll(
        self, wanted: tuple[Step, ...], using: Collection[ModelHealthState], affected: Collection[ModelHealthState]
    ) -> bool:
        """Whether to use a rolling reload: other versions answer, and unloading would take them out of service.

        It needs memory for two sets of instances. Where it has failed, the steps are unloaded.
        """
        others_answer = any(
            model.sound and not self._state.is_affected(model) for model in using if model not in affected
        )
        return others_answer and wanted not in self._rolling_failed
