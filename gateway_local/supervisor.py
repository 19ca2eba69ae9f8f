"""Keeping a process alive: one that died or hangs is started again."""

import time
from collections.abc import Callable

from gateway.errors import UserError
from gateway.server.workers import MAX_DEATHS, Restarts
from gateway_local.children import Child

Say = Callable[[str], None]

CHECK_SECONDS = 2.0
HANGS_AFTER = 3
"""Consecutive checks without an answer; each waits for 2 s, so a hang is found within about ten seconds."""
READINESS_SECONDS = 10.0
"""Time between two questions whether images are classified: each costs the API a request."""


class GivenUp(UserError):
    """A process keeps dying; the message names it, and how it ended."""


class Supervisor:
    """Restarts a process that died or hangs; call `check` periodically, it never waits for long.

    The API detects and recovers models that fail, or were not loaded, inside a healthy Triton.
    """

    def __init__(
        self,
        process: Child,
        say: Say,
        *,
        start_timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._process = process
        self._say = say
        self._start_timeout_seconds = start_timeout_seconds
        self._clock = clock
        self._started_at = self._checked_at = clock()
        self._start_at: float | None = None
        """When to start the process again; None while it runs."""
        self._ready = True
        self._silences = 0
        self._restarts = Restarts()

    def check(self) -> None:
        """Start the process again if it died or hangs; raises GivenUp if it keeps dying."""
        if self._start_at is not None:
            if self._clock() >= self._start_at:
                self._start()
        elif not self._process.alive:
            self._restart(f"{self._process.name} ended with code {self._process.poll()}")
        elif self._clock() - self._checked_at >= CHECK_SECONDS:
            self._checked_at = self._clock()
            self._check_answers()

    def _check_answers(self) -> None:
        name = self._process.name
        if not self._ready:
            self._ready = self._process.ready()
            if self._ready:
                self._say(f"{name} answers again after {self._clock() - self._started_at:.1f} s")
                self._silences = 0
                return
            if self._clock() - self._started_at > self._start_timeout_seconds:
                self._restart(f"{name} was not ready after {self._start_timeout_seconds:g} s")
                return
            silent = self._process.hangs()
        else:
            silent = not self._process.answers()
        self._silences = self._silences + 1 if silent else 0
        if self._silences >= HANGS_AFTER:
            self._restart(f"{name} does not answer")

    def _restart(self, why: str) -> None:
        self._process.stop(grace_seconds=0)
        pause_seconds = self._restarts.pause_seconds(self._clock() - self._started_at)
        if pause_seconds is None:
            raise GivenUp(f"{why} {MAX_DEATHS + 1} times in a row; its log may say why")
        self._say(f"{why}; starting it again in {pause_seconds:g} s")
        # No sleep here: the checks of other processes must not wait for this one.
        self._start_at = self._clock() + pause_seconds

    def _start(self) -> None:
        self._process.start()
        self._start_at = None
        self._started_at = self._checked_at = self._clock()
        self._ready = False
        self._silences = 0


class Readiness:
    """Reports when images can no longer be classified, and when they can be again; call `check` periodically.

    `probe` returns whether a recent inference succeeded, and the reason if it did not.
    """

    def __init__(
        self, probe: Callable[[], tuple[bool, str]], say: Say, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._probe = probe
        self._say = say
        self._clock = clock
        self._probed_at = clock()
        self._lost_at: float | None = None
        """When readiness was lost; None while the service is ready."""
        self._reason = ""

    def check(self) -> None:
        """Probe every READINESS_SECONDS, every CHECK_SECONDS while it is lost, and report changes."""
        interval_seconds = READINESS_SECONDS if self._lost_at is None else CHECK_SECONDS
        if self._clock() - self._probed_at < interval_seconds:
            return
        ready, reason = self._probe()
        self._probed_at = self._clock()
        if ready:
            if self._lost_at is not None:
                self._say(f"ready again after {self._probed_at - self._lost_at:.1f} s")
            self._lost_at = None
            self._reason = ""
        else:
            self._lost_at = self._probed_at if self._lost_at is None else self._lost_at
            if reason != self._reason:
                self._say(f"not ready: {reason}")
            self._reason = reason
