"""Keeps a folder like a bucket, and has the Triton beside it load what has changed: `gateway model pull --follow`."""

import random
import time
from collections.abc import Callable, Collection
from http import HTTPStatus
from pathlib import Path

import httpx

from gateway.errors import UserError
from gateway.triton.load_pauses import pause_seconds
from gateway_local.sizing import CONFIG
from gateway_models.repository.bucket import Follower, ensembles_of

LOAD_SECONDS = 600.0
"""Longest time that Triton may take to load a model."""
SETTLE_SECONDS = 5.0
"""Pause before models are loaded: Triton's container completes their configurations, every 2 seconds."""
SPREAD = 0.25
"""Share of the interval by which it varies, so that Tritons load at different times."""

Say = Callable[[str], None]


class Triton:
    """A Triton at an http:// URL, whose repository is a folder here."""

    def __init__(self, url: str, repository: Path) -> None:
        self._client = httpx.Client(base_url=url.rstrip("/"), timeout=LOAD_SECONDS)
        self._repository = repository

    def load(self, models: Collection[str], say: Say) -> set[str]:
        """Load models, steps before ensembles, and unload those that have gone; returns the ones that failed.

        Between two loads there is a pause for calls.
        """
        ensembles, failed, pause = ensembles_of(self._repository), set(), 0.0
        for name in sorted(models, key=lambda name: (name in ensembles, name)):
            time.sleep(pause)
            began = time.monotonic()
            action = "load" if (self._repository / name / CONFIG).is_file() else "unload"
            try:
                response = self._client.post(f"/v2/repository/models/{name}/{action}", json={})
                reason = "" if response.status_code == HTTPStatus.OK else response.text[:500]
            except httpx.HTTPError as exc:
                reason = str(exc) or type(exc).__name__
            pause = pause_seconds(time.monotonic() - began)
            if reason:
                failed.add(name)
                say(f"Triton did not {action} {name}: {reason}")
            else:
                say(f"Triton has {action}ed {name}")
        return failed


class Following:
    """One update after the other: what fails is reported, and tried again by the next one."""

    def __init__(self, follower: Follower, triton: Triton | None, say: Say, *, settle_seconds: float) -> None:
        self._follower, self._triton, self._say = follower, triton, say
        self._settle_seconds = settle_seconds
        self._pending: set[str] = set()

    def update(self) -> None:
        """Copy what has changed in the bucket, and load it."""
        try:
            changed = self._follower.update()
        except (UserError, OSError) as exc:
            self._say(f"{exc}; trying again")
            return
        if changed:
            self._say(f"copied changes of {', '.join(sorted(changed))}")
        self._pending |= changed
        if self._triton is None:
            self._pending.clear()
        elif self._pending:
            time.sleep(self._settle_seconds)
            self._pending = self._triton.load(self._pending, self._say)

    def run(self, interval_seconds: float) -> None:
        """Update for ever."""
        while True:
            time.sleep(interval_seconds * random.uniform(1 - SPREAD, 1 + SPREAD))  # noqa: S311  # no secret
            self.update()
