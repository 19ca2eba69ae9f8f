"""Models whose process died are reloaded; Triton 2.51 to 26.07 leaves them dead."""

import asyncio
import fcntl
import hashlib
import os
import random
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from gateway import metrics
from gateway.errors import GatewayError
from gateway.triton.endpoint import Endpoint

log = structlog.get_logger("gateway")

FIRST_BACKOFF_SECONDS, LAST_BACKOFF_SECONDS = 1.0, 60.0
JITTER_SECONDS = 0.3
"""Gateways on other machines, which no lock reaches, start at different moments and see what the first one does."""


class Healer:
    """Unloads and loads the models of one Triton. It needs --model-control-mode=explicit.

    Gateways on one machine hold a lock for it. Gateways elsewhere see a model that is not READY, and keep away.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.status = "idle"
        self._endpoint = endpoint
        self._backoff_seconds = FIRST_BACKOFF_SECONDS
        self._not_before = 0.0
        self._succeeded_at = 0.0

    async def reload(self, steps: Collection[str], ensemble: str) -> bool:
        """Unload and load `steps`, whose processes died, and then the ensemble.

        Returns whether that is done, here or by another gateway; false where it failed or it is too early to try again.
        """
        if time.monotonic() < self._not_before:
            return False
        with _only_one(self._endpoint.address) as alone:
            await asyncio.sleep(random.uniform(0, JITTER_SECONDS))  # noqa: S311  # no secret
            if not alone or not await self._all_ready(steps):
                self.status = "another gateway heals"
                return True
            started = time.monotonic()
            self.status = f"reloading {', '.join(sorted(steps))}"
            log.warning("healing", triton=self._endpoint.address, models=sorted(steps))
            try:
                for step in sorted(steps):
                    await self._endpoint.unload(step)
                    await self._endpoint.load(step)
                await self._endpoint.load(ensemble)
            except GatewayError as exc:
                self._failed(exc)
                return False
            self._healed(time.monotonic() - started)
            return True

    async def load(self, models: Collection[str], ensemble: str) -> None:
        """Load what somebody unloaded and did not load again."""
        if time.monotonic() < self._not_before:
            return
        try:
            for model in dict.fromkeys((*models, ensemble)):
                await self._endpoint.load(model)
        except GatewayError as exc:
            self._failed(exc)

    async def _all_ready(self, steps: Collection[str]) -> bool:
        try:
            index = await self._endpoint.index()
        except GatewayError:
            return False
        return all(model.state == "READY" for model in index.models if model.name in steps)

    def _healed(self, seconds: float) -> None:
        self.status = f"healed in {seconds:.1f} s"
        metrics.HEALINGS.labels("healed").inc()
        log.info("healed", triton=self._endpoint.address, seconds=round(seconds, 3))
        # Backing off also after a success: a model that dies again and again must not be reloaded without pause.
        if time.monotonic() - self._succeeded_at > 2 * LAST_BACKOFF_SECONDS:
            self._backoff_seconds = FIRST_BACKOFF_SECONDS
        self._succeeded_at = time.monotonic()
        self._back_off()

    def _failed(self, error: GatewayError) -> None:
        self.status = f"failed: {error.message}"
        metrics.HEALINGS.labels("failed").inc()
        log.error("healing_failed", triton=self._endpoint.address, cause=str(error.__cause__ or error))
        self._back_off()

    def _back_off(self) -> None:
        self._not_before = time.monotonic() + self._backoff_seconds
        self._backoff_seconds = min(2 * self._backoff_seconds, LAST_BACKOFF_SECONDS)


@contextmanager
def _only_one(address: str) -> Iterator[bool]:
    """Whether this process is the only one of its user on this machine that heals the Triton at an address."""
    name = hashlib.sha256(address.encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"triton-image-gateway-{os.getuid()}-{name}.lock"
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
