"""What is broken at one Triton, and its repair: dead processes, models that fail every trial, models not loaded."""

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
"""A death that was seen so lately needs no further proof."""
ASKED_SECONDS = 60.0
"""Whom no client has asked for so long, none misses."""


class Recovery:
    """Decides what is reloaded, when, and what is out of service meanwhile; a Healer does it.

    `try_again` tries a model after its reload, `tell` says what has changed.
    """

    def __init__(
        self,
        known: HealthState,
        expected: ExpectedModels,
        trials: Probes,
        healer: ModelReloader | None,
        schedule: Schedule,
        *,
        try_again: Callable[[ModelHealthState], Awaitable[None]],
        tell: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lone: set[str] = set()
        """Models of which a process died, and through which no ensemble answers."""
        self.under_repair: set[str] = set()
        """Ensembles whose steps are being reloaded."""
        self.mended_at = float("-inf")
        """When something was last reloaded."""
        self._known, self._expected = known, expected
        self._trials = trials
        self._healer = healer
        self._schedule = schedule
        self._try_again, self._tell, self._clock = try_again, tell, clock
        self._dead: dict[Step, float] = {}
        """Steps of which a process died, and when that was last seen."""
        self._not_gently: set[tuple[Step, ...]] = set()
        """Steps that could not be loaded anew while others of their versions answer: for lack of memory, say."""
        self._left_to_others: dict[str, float] = {}
        """Steps that another gateway was reloading, and since when."""
        self._reloading: set[str] = set()
        """Steps that are being reloaded, and the ensembles over them."""
        self._unloaded_since: dict[str, float] = {}
        """Expected models that somebody unloaded, and since when."""
        self._not_listed: set[str] = set()
        """Expected models that Triton's repository did not have."""

    @property
    def status(self) -> str:
        """For people: off, or what the healer does."""
        return self._healer.status if self._healer else "off"

    @property
    def needed(self) -> bool:
        """Whether a process is known to be dead."""
        return bool(self._dead or self.lone)

    def died(self, step: Step) -> None:
        """Take note that a process of a step is dead."""
        self._dead[step] = self._clock()

    def hurts(self, record: ModelHealthState) -> bool:
        """Whether a process of one of its steps is dead, in the version that it asks."""
        return any(step.meets(self._dead) for step in record.steps)

    async def mend(self) -> None:
        """Mend what can be mended."""
        if self._healer is None:
            self._dead.clear()
            self.lone.clear()
            return
        for model in sorted(self.lone):
            await self._reload_lone(self._healer, model)
        for step in sorted(self._dead):
            await self._reload(self._healer, (step,))
        sound = {step for record in self._known.records.values() if record.sound for step in record.steps}
        for record in list(self._known.records.values()):
            if record.failures >= self._schedule.failures and record.steps:
                # A step through which other models answer is not at fault, unless every step is such a one.
                own = tuple(step for step in record.steps if step not in sound)
                await self._reload(self._healer, own or record.steps)

    async def load_missing(self) -> None:
        """Load models that should be served and are not, at growing intervals for as long as it takes."""
        if self._healer is None:
            return
        now, missing = self._clock(), self._expected.missing
        for step, since in list(self._left_to_others.items()):
            if now - since > self._schedule.orphaned_seconds:
                self._expected.kept.add(step)  # where it is loaded by now, it is not missing
                del self._left_to_others[step]
        unloaded = {each.name for each in missing if each.reason == UNLOADED} - self._expected.kept
        self._unloaded_since = {name: self._unloaded_since.get(name, now) for name in unloaded}
        patient = {
            name for name, since in self._unloaded_since.items() if now - since <= self._schedule.orphaned_seconds
        }
        not_listed = {each.name for each in missing if each.reason == NOT_LISTED}
        # Those that the repository has now, such as after its storage was mounted, are loaded without delay.
        self._healer.no_longer_missing({each.name for each in missing} - (self._not_listed - not_listed))
        self._not_listed = not_listed
        left_alone = self._reloading | {step.name for step in self._dead} | patient | not_listed
        failed = False
        for each in sorted(missing, key=has_failed, reverse=True):
            if failed and not has_failed(each):
                return  # it may need one that has failed; Triton then loads it by itself
            if each.name not in left_alone:
                left_alone.add(each.name)
                try:
                    failed |= await self._healer.load(each.name) and has_failed(each)
                except LoadNotAllowed:
                    self._expected.expect_all()
                    return

    async def _reload(self, healer: ModelReloader, wanted: tuple[Step, ...]) -> None:
        names = {step.name for step in wanted}
        using = [record for record in self._known.records.values() if names & {step.name for step in record.steps}]
        using = using or [self._known.default]
        hurt = [record for record in using if any(step.meets(wanted) for step in record.steps)] or using
        gently = self._gently(wanted, using, hurt)
        self.under_repair = {record.name for record in (hurt if gently else using)}
        self._reloading = {*names, *(record.name for record in using)}
        self._tell()

        async def still_fails() -> bool:
            seen_at = max(self._dead.get(step, float("-inf")) for step in wanted)
            # To ask a dead process takes Triton a second or two. Where another gateway was at it, what was seen last
            # may be from before its reload.
            fresh = self.mended_at < seen_at and self._clock() - seen_at < FRESH_SECONDS
            if fresh and not self._left_to_others.keys() & names:
                return True
            for record in hurt:
                with contextlib.suppress(GatewayError):  # unloaded or away: somebody else is at it
                    if await self._trials.fault(record):
                        return True
            return False

        try:
            outcome = await healer.reload(names, [record.name for record in using], still_fails, gently=gently)
            if outcome is ReloadOutcome.FAILED:
                if gently:
                    self._not_gently.add(wanted)
                else:
                    # Unloaded, and nobody else's to load.
                    self._dead.update(dict.fromkeys(wanted, self._clock()))
            if outcome in {ReloadOutcome.TOO_EARLY, ReloadOutcome.FAILED}:
                return
            self._not_gently.discard(wanted)
            for step in list(self._dead):
                if step in wanted or (outcome is ReloadOutcome.RELOADED and step.name in names):
                    del self._dead[step]
            self.mended_at = self._clock()
            if outcome is ReloadOutcome.OTHERS:
                self._left_to_others.update(dict.fromkeys(names, self._clock()))
            for record in using:
                await self._try_again(record)
            if outcome is ReloadOutcome.RELOADED:
                if failing := [record.name for record in using if not record.sound]:
                    healer.report_ineffective(names, failing)
                else:
                    healer.proved(names)
        finally:
            self.under_repair, self._reloading = set(), set()
            self._tell()

    def _gently(
        self, wanted: tuple[Step, ...], using: Collection[ModelHealthState], hurt: Collection[ModelHealthState]
    ) -> bool:
        """Whether other versions answer that an unloading would take along.

        That takes memory for two of each. Where it has failed, only clients that miss the version justify an unloading.
        """
        others_answer = any(record.sound and not self.hurts(record) for record in using if record not in hurt)
        missed = any(self._clock() - record.asked_at < ASKED_SECONDS for record in hurt)
        return others_answer and not (missed and wanted in self._not_gently)

    async def _reload_lone(self, healer: ModelReloader, model: str) -> None:
        """Reload a model that no ensemble uses: nobody else is left without an answer meanwhile."""

        async def still_fails() -> bool:
            return model in self.lone  # whoever asked it saw its process dead, and nobody has mended it since

        if await healer.reload((model,), (), still_fails) not in {ReloadOutcome.TOO_EARLY, ReloadOutcome.FAILED}:
            self.lone.discard(model)
