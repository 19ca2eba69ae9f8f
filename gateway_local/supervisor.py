"""Keeping a process alive: one that died or hangs is started again."""

import time
from collections.abc import Callable
from typing import Protocol

from gateway.errors import UserError

Say = Callable[[str], None]

CHECK_SECONDS = 2.0
HANGS_AFTER = 3
"""Checks in a row without an answer; each waits for 2 s, so that this is some ten seconds."""
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.5, 30.0
STEADY_SECONDS = 60.0
"""A process that ran this long is forgiven its earlier deaths."""
MAX_DEATHS = 5
"""Deaths in a row after which starting it again does not help."""


class GivenUp(UserError):
    """A process keeps dying; the message says which, and how it ended."""


class Kept(Protocol):
    """A process that can be started again after it has ended."""

    name: str

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        ...

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        ...

    def start(self) -> None:
        """Start it and return at once."""
        ...

    def stop(self, grace_seconds: float) -> None:
        """End it and all that it has started."""
        ...

    def ready(self) -> bool:
        """Whether it answers after its start; that it does its work is for Readiness to find out."""
        ...

    def answers(self) -> bool:
        """Whether it says that it lives, once it has been ready."""
        ...

    def hangs(self) -> bool:
        """Whether it takes connections and does not answer them, also before it is ready."""
        ...


class Supervisor:
    """Watches a started process; call `check` again and again, which never waits for long.

    Models that fail, or were not loaded, inside a healthy Triton are not its concern: the API sees and recovers those.
    """

    def __init__(
        self, kept: Kept, say: Say, *, start_timeout_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kept = kept
        self._say = say
        self._start_timeout_seconds = start_timeout_seconds
        self._clock = clock
        self._started_at = self._checked_at = clock()
        self._start_at: float | None = None
        """When it is to be started again; None while it runs."""
        self._ready = True
        self._silences = 0
        self._deaths = 0

    def check(self) -> None:
        """Start the process again if it died or hangs; raises GivenUp where that has not helped."""
        if self._start_at is not None:
            if self._clock() >= self._start_at:
                self._start()
        elif not self._kept.alive:
            self._restart(f"{self._kept.name} ended with code {self._kept.poll()}")
        elif self._clock() - self._checked_at >= CHECK_SECONDS:
            self._checked_at = self._clock()
            self._listen()

    def _listen(self) -> None:
        name = self._kept.name
        if not self._ready:
            self._ready = self._kept.ready()
            if self._ready:
                self._say(f"{name} answers again after {self._clock() - self._started_at:.1f} s")
                self._silences = 0
                return
            if self._clock() - self._started_at > self._start_timeout_seconds:
                self._restart(f"{name} was not ready after {self._start_timeout_seconds:g} s")
                return
            silent = self._kept.hangs()
        else:
            silent = not self._kept.answers()
        self._silences = self._silences + 1 if silent else 0
        if self._silences >= HANGS_AFTER:
            self._restart(f"{name} does not answer")

    def _restart(self, why: str) -> None:
        if self._clock() - self._started_at > STEADY_SECONDS:
            self._deaths = 0
        self._deaths += 1
        self._kept.stop(grace_seconds=0)
        if self._deaths > MAX_DEATHS:
            raise GivenUp(f"{why} {self._deaths} times in a row; its log may say why")
        pause_seconds = min(FIRST_PAUSE_SECONDS * 2 ** (self._deaths - 1), LAST_PAUSE_SECONDS)
        self._say(f"{why}; starting it again in {pause_seconds:g} s")
        # Not slept: whatever else is watched must not wait for it.
        self._start_at = self._clock() + pause_seconds

    def _start(self) -> None:
        self._kept.start()
        self._start_at = None
        self._started_at = self._checked_at = self._clock()
        self._ready = False
        self._silences = 0


class Readiness:
    """Reports when images cannot be classified any more, and when they can be again; call `check` again and again.

    `ask` returns whether a real inference succeeded lately, and the reason where it did not.
    """

    def __init__(
        self, ask: Callable[[], tuple[bool, str]], say: Say, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._say = say
        self._clock = clock
        self._asked_at = clock()
        self._lost_at: float | None = None
        """When readiness was lost; None while the service is ready."""
        self._reason = ""

    def check(self) -> None:
        """Ask, every CHECK_SECONDS, and report what has changed."""
        if self._clock() - self._asked_at < CHECK_SECONDS:
            return
        ready, reason = self._ask()
        self._asked_at = self._clock()
        if ready:
            if self._lost_at is not None:
                self._say(f"ready again after {self._asked_at - self._lost_at:.1f} s")
            self._lost_at = None
            self._reason = ""
        else:
            self._lost_at = self._asked_at if self._lost_at is None else self._lost_at
            if reason != self._reason:
                self._say(f"not ready: {reason}")
            self._reason = reason
