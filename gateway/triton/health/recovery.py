"""Recovery of one Triton: dead processes, models that fail every probe, models that are not loaded."""

import contextlib
import time
from collections.abc import Awaitable, Callable, Collection

from gateway.errors import GatewayError
from gateway.triton.error_table import LoadNotAllowed
from gateway.triton.health.expected import NOT_LISTED, UNLOADED, ExpectedModels, has_failed
from gateway.triton.health.probes import Probes, Schedule
from gateway.triton.health.reloading import ModelReloader, ReloadOutcome
from gateway.triton.health.state import HealthState, ModelHealthState
from gateway.triton.steps import Step

FRESH_SECONDS = 1.0
"""A death seen within this time is not probed again before a reload."""
RECENT_USE_SECONDS = 60.0
"""A model unused for this long may be unavailable while it reloads."""


class Recovery:
    """Decides which models are reloaded, when, and which are out of service meanwhile; a ModelReloader does it.

    `probe_again` probes a model after its reload, `report` logs and counts changes of readiness.
    """

    def __init__(
        self,
        state: HealthState,
        expected: ExpectedModels,
        probes: Probes,
        reloader: ModelReloader | None,
        schedule: Schedule,
        *,
        probe_again: Callable[[ModelHealthState], Awaitable[None]],
        report: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.standalone: set[str] = set()
        """Models with a dead process that are no step of an ensemble."""
        self.recovering: set[str] = set()
        """Ensembles whose steps are being reloaded."""
        self.recovered_at = float("-inf")
        """When a reload last ended."""
        self._state, self._expected = state, expected
        self._probes = probes
        self._reloader = reloader
        self._schedule = schedule
        self._probe_again, self._report, self._clock = probe_again, report, clock
        self._dead: dict[Step, float] = {}
        """Steps with a dead process, and when that was last seen."""
        self._rolling_failed: set[tuple[Step, ...]] = set()
        """Steps whose rolling reload failed, for example for lack of memory."""
        self._left_to_others: dict[str, float] = {}
        """Steps that another gateway reloads, and since when."""
        self._reloading: set[str] = set()
        """Steps that are being reloaded, and the ensembles over them."""
        self._unloaded_since: dict[str, float] = {}
        """Expected models that were unloaded, and since when."""
        self._not_listed: set[str] = set()
        """Expected models that Triton's repository did not have."""

    @property
    def status(self) -> str:
        """What the reloader does, as text; "off" without one."""
        return self._reloader.status if self._reloader else "off"

    @property
    def needed(self) -> bool:
        """Whether a process is known to be dead."""
        return bool(self._dead or self.standalone)

    def died(self, step: Step) -> None:
        """Record that a process of a step is dead."""
        self._dead[step] = self._clock()

    def affects(self, record: ModelHealthState) -> bool:
        """Whether a process of one of its steps is dead, in the version that the ensemble uses."""
        return any(step.meets(self._dead) for step in record.steps)

    async def recover(self) -> None:
        """Reload models with a dead process, and models that failed several probes in a row."""
        if self._reloader is None:
            self._dead.clear()
            self.standalone.clear()
            return
        for model in sorted(self.standalone):
            await self._reload_standalone(self._reloader, model)
        for step in sorted(self._dead):
            await self._reload(self._reloader, (step,))
        sound = {step for record in self._state.records.values() if record.sound for step in record.steps}
        for record in list(self._state.records.values()):
            if record.failures >= self._schedule.failures and record.steps:
                # A step through which other models answer is not at fault, unless that holds for every step.
                own = tuple(step for step in record.steps if step not in sound)
                await self._reload(self._reloader, own or record.steps)

    async def load_missing(self) -> None:
        """Load models that should be served and are not, at growing intervals for as long as it takes."""
        if self._reloader is None:
            return
        now, missing = self._clock(), self._expected.missing
        for step, since in list(self._left_to_others.items()):
            if now - since > self._schedule.orphaned_seconds:
                self._expected.kept.add(step)  # has no effect if it is loaded by now
                del self._left_to_others[step]
        unloaded = {each.name for each in missing if each.reason == UNLOADED} - self._expected.kept
        self._unloaded_since = {name: self._unloaded_since.get(name, now) for name in unloaded}
        patient = {
            name for name, since in self._unloaded_since.items() if now - since <= self._schedule.orphaned_seconds
        }
        not_listed = {each.name for each in missing if each.reason == NOT_LISTED}
        # Models that have appeared in the repository, for example once its storage is mounted, are loaded at once.
        self._reloader.reset_backoff_except({each.name for each in missing} - (self._not_listed - not_listed))
        self._not_listed = not_listed
        left_alone = self._reloading | {step.name for step in self._dead} | patient | not_listed
        failed = False
        for each in sorted(missing, key=has_failed, reverse=True):
            if failed and not has_failed(each):
                return  # it may need a failed model, and Triton then loads it with that one
            if each.name not in left_alone:
                left_alone.add(each.name)
                try:
                    failed |= await self._reloader.load(each.name) and has_failed(each)
                except LoadNotAllowed:
                    self._expected.expect_all()
                    return

    async def _reload(self, reloader: ModelReloader, wanted: tuple[Step, ...]) -> None:
        names = {step.name for step in wanted}
        using = [record for record in self._state.records.values() if names & {step.name for step in record.steps}]
        using = using or [self._state.default]
        affected = [record for record in using if any(step.meets(wanted) for step in record.steps)] or using
        rolling = self._can_roll(wanted, using, affected)
        self.recovering = {record.name for record in (affected if rolling else using)}
        self._reloading = {*names, *(record.name for record in using)}
        self._report()

        async def still_fails() -> bool:
            seen_at = max(self._dead.get(step, float("-inf")) for step in wanted)
            # A probe of a dead process takes Triton 1 to 2 s. If another gateway has reloaded the step, the death
            # may have been seen before that reload.
            fresh = self.recovered_at < seen_at and self._clock() - seen_at < FRESH_SECONDS
            if fresh and not self._left_to_others.keys() & names:
                return True
            for record in affected:
                with contextlib.suppress(GatewayError):  # unloaded or unreachable: another gateway may be reloading it
                    if await self._probes.failure(record):
                        return True
            return False

        try:
            outcome = await reloader.reload(names, [record.name for record in using], still_fails, rolling=rolling)
            if outcome is ReloadOutcome.FAILED:
                if rolling:
                    self._rolling_failed.add(wanted)
                else:
                    # This gateway has unloaded the steps, so it must load them.
                    self._dead.update(dict.fromkeys(wanted, self._clock()))
            if outcome in {ReloadOutcome.TOO_EARLY, ReloadOutcome.FAILED}:
                return
            self._rolling_failed.discard(wanted)
            for step in list(self._dead):
                if step in wanted or (outcome is ReloadOutcome.RELOADED and step.name in names):
                    del self._dead[step]
            self.recovered_at = self._clock()
            if outcome is ReloadOutcome.OTHERS:
                self._left_to_others.update(dict.fromkeys(names, self._clock()))
            for record in using:
                await self._probe_again(record)
            if outcome is ReloadOutcome.RELOADED:
                if failing := [record.name for record in using if not record.sound]:
                    reloader.report_ineffective(names, failing)
                else:
                    reloader.report_effective(names)
        finally:
            self.recovering, self._reloading = set(), set()
            self._report()

    def _can_roll(
        self, wanted: tuple[Step, ...], using: Collection[ModelHealthState], affected: Collection[ModelHealthState]
    ) -> bool:
        """Whether to use a rolling reload: other versions answer, and unloading would take them out of service.

        It needs memory for two sets of instances. Where it has failed, the steps are unloaded only if clients have used
        an affected version within RECENT_USE_SECONDS.
        """
        others_answer = any(record.sound and not self.affects(record) for record in using if record not in affected)
        missed = any(self._clock() - record.used_at < RECENT_USE_SECONDS for record in affected)
        return others_answer and not (missed and wanted in self._rolling_failed)

    async def _reload_standalone(self, reloader: ModelReloader, model: str) -> None:
        """Reload a model that no ensemble uses, so that no other model is affected."""

        async def still_fails() -> bool:
            return model in self.standalone  # a request found its process dead, and no reload has succeeded since

        if await reloader.reload((model,), (), still_fails) not in {ReloadOutcome.TOO_EARLY, ReloadOutcome.FAILED}:
            self.standalone.discard(model)
