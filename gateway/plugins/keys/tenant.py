"""The limits and the usage of one API key's requests."""

import asyncio
import math
from typing import TYPE_CHECKING

from gateway.errors import Forbidden, GatewayError, RateLimited
from gateway.limits.bounds import Bound
from gateway.limits.caller import Caller, Stages
from gateway.metrics import series
from gateway.plugins.keys import metrics
from gateway.plugins.keys.quota import Period, Priority, Quota, Rate, Window
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.plugins.keys.rates import Grant, Rates

BULK_WEIGHT = 0.1
"""Weight of bulk images: while interactive ones wait, one in eleven permits is for a bulk image of an equal share."""
LIMITS_PATH = "/limits"
"""The route that every key may use: the Python client reads it."""
POLICY = "images"
"""Name of the rate in the headers RateLimit and RateLimit-Policy."""
TURNS = 4
"""Images of one key that try to be counted at a time, in the order of arrival; later ones wait for these."""
PAUSE_SECONDS = 0.001
"""Shortest time between two attempts for the same image."""


class Tenant(Caller):
    """The requests of one API key."""

    def __init__(self, name: str, quota: Quota, settings: Settings, rates: "Rates") -> None:
        self.name, self.quota = name, quota
        self.has_rate = quota.rate is not None or bool(quota.periods)
        share = quota.share or 1.0
        most = max(1, int(share * settings.max_images_in_flight))
        self.images = Bound("share", most, metrics.KEY_IMAGES_IN_FLIGHT.labels(name))
        self.weight = share * (BULK_WEIGHT if quota.priority is Priority.BULK else 1.0)
        most = max(settings.max_file_bytes, int(share * settings.max_bytes_waiting))
        self.upload_bytes = None if quota.share is None else Bound("share", most)
        """The bytes of uploads that may wait, if the key has a share: at least one file."""
        self._rates = rates
        self._rate_state: Grant | None = None
        self._used: dict[Period, tuple[Window, int]] = {}
        """The images of each day or month with a limit, as of the last count."""
        self._waiting = 0
        """Images that wait for the rate."""
        self._turns = asyncio.Semaphore(TURNS)
        for outcome in ("ok", "failed"):
            metrics.KEY_IMAGES.labels(name, outcome)
        for reason in ("rate", "period", "forbidden"):
            metrics.KEY_REFUSALS.labels(name, reason)

    def check_route(self, path: str, *, takes_images: bool) -> None:  # noqa: ARG002  # see Caller
        """Raise Forbidden if the key may not be used for a path."""
        if path != LIMITS_PATH and not self.quota.allows_route(path):
            raise self._forbidden(f"{path}: its quota allows {', '.join(self.quota.routes)}")

    def allows_model(self, name: str) -> bool:
        """Whether the key may use a model."""
        return self.quota.allows_model(name)

    def check_model(self, name: str) -> None:
        """Raise Forbidden if the key may not use a model."""
        if not self.quota.allows_model(name):
            raise self._forbidden(f"the model {name[:64]!r}: its quota allows {', '.join(self.quota.models)}")

    async def charge(self, most_seconds: float, stages: Stages) -> None:
        """Count an image against rate, day and month; waits for up to `most_seconds`, else raises RateLimited."""
        if not self.has_rate:
            return
        for period, (window, used) in self._used.items():
            if used >= self.quota.periods[period] and window == Window.now(period):
                raise self._exhausted(period, window)
        with stages["wait"]:
            if self.quota.rate is not None:
                await self._take(self.quota.rate, most_seconds)
            for period, images in self.quota.periods.items():
                window = Window.now(period)
                used = await self._rates.count(self.name, period, window)
                self._used[period] = window, used
                if used > images:
                    raise self._exhausted(period, window)

    def _exhausted(self, period: Period, window: Window) -> RateLimited:
        series(metrics.KEY_REFUSALS, self.name, "period").inc()
        images, resets_at = self.quota.periods[period], f"{window.ends:%Y-%m-%dT%H:%M:%SZ}"
        return RateLimited(
            f"This key may send images at {images}/{period}; it may send more from {resets_at}.",
            retry_after_seconds=window.left_seconds,
            limit=f"per-{period}",
            value=images,
            resets_at=resets_at,
        )

    async def _take(self, rate: Rate, most_seconds: float) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + most_seconds
        if self._waiting:
            self._check_wait(rate, self._waiting * rate.seconds / rate.images, most_seconds)
        elif (grant := await self._attempt(rate)).admitted:
            return
        else:
            self._check_wait(rate, grant.next_seconds, most_seconds)
        self._waiting += 1
        try:
            async with self._turns:
                while not (grant := await self._attempt(rate)).admitted:
                    self._check_wait(rate, grant.next_seconds, deadline - clock())
                    await asyncio.sleep(max(grant.next_seconds, PAUSE_SECONDS))
        finally:
            self._waiting -= 1

    async def _attempt(self, rate: Rate) -> "Grant":
        self._rate_state = grant = await self._rates.take(self.name, rate)
        return grant

    def _check_wait(self, rate: Rate, wait_seconds: float, most_seconds: float) -> None:
        """Raise RateLimited if an image cannot wait until its turn."""
        if wait_seconds <= most_seconds:
            return
        series(metrics.KEY_REFUSALS, self.name, "rate").inc()
        raise RateLimited(
            f"This key's rate of images is {rate.images}/{rate.unit}; retry later.",
            retry_after_seconds=math.ceil(wait_seconds),
            limit="rate",
            value=rate.images,
        )

    def count(self, error: GatewayError | None) -> None:
        """Count the result of an image."""
        series(metrics.KEY_IMAGES, self.name, "ok" if error is None else "failed").inc()

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers RateLimit-Policy and RateLimit (draft-ietf-httpapi-ratelimit-headers-11); none without limits.

        The unit is the image, for which the draft has no name, so the policy of the rate is named after it.
        """
        policies, states = [], []
        if (rate := self.quota.rate) is not None and (grant := self._rate_state) is not None:
            policies.append(f'"{POLICY}";q={rate.images};w={rate.seconds}')
            states.append(f'"{POLICY}";r={grant.remaining};t={math.ceil(grant.next_seconds)}')
        for period, (window, used) in self._used.items():
            images = self.quota.periods[period]
            policies.append(f'"{period}";q={images};w={round((window.ends - window.begins).total_seconds())}')
            states.append(f'"{period}";r={max(images - used, 0)};t={window.left_seconds}')
        if not policies:
            return []
        return [(b"ratelimit-policy", ", ".join(policies).encode()), (b"ratelimit", ", ".join(states).encode())]

    def _forbidden(self, what: str) -> Forbidden:
        series(metrics.KEY_REFUSALS, self.name, "forbidden").inc()
        return Forbidden(f"The key {self.name!r} cannot be used for {what}.")
