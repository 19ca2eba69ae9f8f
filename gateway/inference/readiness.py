"""The truth about health: a real inference, tried again and again."""

import asyncio
import time
from dataclasses import dataclass
from datetime import datetime, timezone

from gateway import metrics
from gateway.errors import GatewayError
from gateway.inference.backend import Backend
from gateway.inference.probe import probe


@dataclass(frozen=True, slots=True)
class Trial:
    """One inference that was tried: when (UTC), how many seconds it took, and what went wrong, if anything did."""

    at: datetime
    seconds: float
    error: GatewayError | None


class Readiness:
    """Tries an inference through the default model every `interval_seconds`, whatever the load.

    Ready means that the last trial succeeded and is not older than the next one should be.
    """

    def __init__(self, backend: Backend, *, model_name: str, interval_seconds: float, timeout_seconds: float) -> None:
        self.model_name = model_name
        self.last: Trial | None = None
        self._backend = backend
        self._interval_seconds = interval_seconds
        self._timeout_seconds = timeout_seconds
        self._last_monotonic = 0.0

    @property
    def ready(self) -> bool:
        """Whether a real inference lately succeeded."""
        if self.last is None or self.last.error is not None:
            return False
        age = time.monotonic() - self._last_monotonic
        return age <= self._interval_seconds + 2 * self._timeout_seconds

    async def watch(self) -> None:
        """Try for ever; a first success is looked for at a quicker pace."""
        while True:
            await self.try_once()
            metrics.READY.set(self.ready)
            await asyncio.sleep(self._interval_seconds if self.ready else min(0.5, self._interval_seconds))

    async def try_once(self) -> Trial:
        """Send a tiny image, unlike any before, through the model."""
        at, started = datetime.now(timezone.utc), time.monotonic()
        error: GatewayError | None = None
        try:
            await self._backend.infer(
                probe(),
                model_name=self.model_name,
                model_version="",
                top_k=1,
                timeout_seconds=self._timeout_seconds,
                request_id="readiness",
            )
        except GatewayError as exc:
            error = exc
        self._last_monotonic = time.monotonic()
        self.last = Trial(at, self._last_monotonic - started, error)
        return self.last
