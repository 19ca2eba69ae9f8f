"""Keeping a Triton process alive: one that died or hangs is started again."""

import time
from collections.abc import Callable

from gateway.embedded.server import EmbeddedTriton, StartFailed

Say = Callable[[str], None]

CHECK_SECONDS = 2.0
HANGS_AFTER = 3
"""Checks in a row without an answer; each waits for 2 s, so that this is some ten seconds."""
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.5, 30.0
STEADY_SECONDS = 60.0
"""A Triton that ran as long is forgiven its earlier deaths."""
MAX_DEATHS = 5
"""Deaths in a row after which starting it again is no help."""


class Keeper:
    """Watches a started Triton; call `check` again and again.

    Models that fail inside a healthy server are not its concern: the API sees and heals those.
    """

    def __init__(self, server: EmbeddedTriton, say: Say, *, start_timeout_seconds: float) -> None:
        self._server = server
        self._say = say
        self._start_timeout_seconds = start_timeout_seconds
        self._started_at = time.monotonic()
        self._checked_at = self._started_at
        self._ready = True
        self._silences = 0
        self._deaths = 0

    def check(self) -> None:
        """Start the server again if it died or hangs; raises StartFailed where that has not helped."""
        if not self._server.alive:
            self._restart(f"Triton ended with code {self._server.poll()}")
        elif time.monotonic() - self._checked_at >= CHECK_SECONDS:
            self._checked_at = time.monotonic()
            self._listen()

    def _listen(self) -> None:
        if not self._ready:
            self._ready = self._server.ready()
            if self._ready:
                self._say(f"Triton is ready again after {time.monotonic() - self._started_at:.1f} s")
            elif time.monotonic() - self._started_at > self._start_timeout_seconds:
                self._restart(f"Triton was not ready after {self._start_timeout_seconds:g} s")
            return
        self._silences = 0 if self._server.answers() else self._silences + 1
        if self._silences >= HANGS_AFTER:
            self._restart("Triton does not answer")

    def _restart(self, why: str) -> None:
        if time.monotonic() - self._started_at > STEADY_SECONDS:
            self._deaths = 0
        self._deaths += 1
        if self._deaths > MAX_DEATHS:
            raise StartFailed(f"{why}, the {self._deaths}th time in a row; its log above may say why")
        pause_seconds = min(FIRST_PAUSE_SECONDS * 2 ** (self._deaths - 1), LAST_PAUSE_SECONDS)
        self._say(f"{why}; starting it again in {pause_seconds:g} s")
        self._server.stop(grace_seconds=0)
        time.sleep(pause_seconds)
        self._server.start()
        self._started_at = self._checked_at = time.monotonic()
        self._ready = False
        self._silences = 0
