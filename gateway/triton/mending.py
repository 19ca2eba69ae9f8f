"""What is broken at one Triton, and its repair: dead processes, models that fail every trial, models left unloaded."""

import contextlib
import time
from collections.abc import Awaitable, Callable, Collection

from gateway.errors import GatewayError, ModelUnavailable
from gateway.triton.error_table import StubDied
from gateway.triton.healing import Healer, HealOutcome
from gateway.triton.record import Known, Record
from gateway.triton.steps import Step
from gateway.triton.trials import Schedule, Trials

FRESH_SECONDS = 1.0
"""A death that was seen so lately needs no further proof."""
ASKED_SECONDS = 60.0
"""Whom no client has asked for so long, none misses."""


class Mending:
    """Decides what is reloaded, when, and what is out of service meanwhile; a Healer does it.

    `try_again` tries a model after its reload, `tell` says what has changed.
    """

    def __init__(
        self,
        known: Known,
        trials: Trials,
        healer: Healer | None,
        schedule: Schedule,
        *,
        try_again: Callable[[Record], Awaitable[None]],
        tell: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lone: set[str] = set()
        """Models of which a process died, and through which no ensemble answers."""
        self.under_repair: set[str] = set()
        """Ensembles whose steps are being reloaded."""
        self.mended_at = float("-inf")
        """When something was last reloaded."""
        self._known = known
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
        self._unavailable_since: float | None = None

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

    def hurts(self, record: Record) -> bool:
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
        await self._load_orphans(self._healer)

    async def _reload(self, healer: Healer, wanted: tuple[Step, ...]) -> None:
        names = {step.name for step in wanted}
        using = [record for record in self._known.records.values() if names & {step.name for step in record.steps}]
        using = using or [self._known.default]
        hurt = [record for record in using if any(step.meets(wanted) for step in record.steps)] or using
        gently = self._gently(wanted, using, hurt)
        self.under_repair = {record.name for record in (hurt if gently else using)}
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
            if outcome is HealOutcome.FAILED:
                if gently:
                    self._not_gently.add(wanted)
                else:
                    # Unloaded, and nobody else's to load.
                    self._dead.update(dict.fromkeys(wanted, self._clock()))
            if outcome in {HealOutcome.TOO_EARLY, HealOutcome.FAILED}:
                return
            self._not_gently.discard(wanted)
            for step in list(self._dead):
                if step in wanted or (outcome is HealOutcome.RELOADED and step.name in names):
                    del self._dead[step]
            self.mended_at = self._clock()
            if outcome is HealOutcome.OTHERS:
                self._left_to_others.update(dict.fromkeys(names, self._clock()))
            for record in using:
                await self._try_again(record)
            if outcome is HealOutcome.RELOADED:
                if failing := [record.name for record in using if not record.sound]:
                    healer.in_vain(names, failing)
                else:
                    healer.proved(names)
        finally:
            self.under_repair = set()
            self._tell()

    def _gently(self, wanted: tuple[Step, ...], using: Collection[Record], hurt: Collection[Record]) -> bool:
        """Whether other versions answer that an unloading would take along.

        That takes memory for two of each. Where it has failed, only clients that miss the version justify an unloading.
        """
        others_answer = any(record.sound and not self.hurts(record) for record in using if record not in hurt)
        missed = any(self._clock() - record.asked_at < ASKED_SECONDS for record in hurt)
        return others_answer and not (missed and wanted in self._not_gently)

    async def _reload_lone(self, healer: Healer, model: str) -> None:
        """Reload a model that no ensemble uses: nobody else is left without an answer meanwhile."""

        async def still_fails() -> bool:
            return model in self.lone  # whoever asked it saw its process dead, and nobody has mended it since

        if await healer.reload((model,), (), still_fails) not in {HealOutcome.TOO_EARLY, HealOutcome.FAILED}:
            self.lone.discard(model)

    async def _load_orphans(self, healer: Healer) -> None:
        """Load what another gateway unloaded to heal it, and did not load again."""
        now = self._clock()
        late = [step for step, since in self._left_to_others.items() if now - since > self._schedule.orphaned_seconds]
        if late:
            in_service = await healer.states()
            if in_service and (missing := [step for step in late if step not in in_service]):
                await healer.load(missing)
            for step in late:
                del self._left_to_others[step]
        error = self._known.default.trial.error if self._known.default.trial else None
        if not isinstance(error, ModelUnavailable) or isinstance(error, StubDied):
            self._unavailable_since = None
            return
        self._unavailable_since = self._unavailable_since or now
        if now - self._unavailable_since > self._schedule.orphaned_seconds:
            await healer.load([*(state.name for state in self._known.not_ready), self._known.default.name])
            self._unavailable_since = None
