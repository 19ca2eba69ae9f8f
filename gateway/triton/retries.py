"""Retries of calls to Triton, and of the images of a call during which the process of a model died, each alone."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

import structlog

from gateway import metrics
from gateway.errors import (
    DeadlineExceeded,
    GatewayError,
    ImageQuarantined,
    ModelUnavailable,
    RequestError,
    TritonUnreachable,
)
from gateway.inference.backend import Call, InferResult, Row
from gateway.triton.error_table import StubDied
from gateway.triton.pool import TritonPool
from gateway.triton.quarantine import Quarantine
from gateway.triton.replica import Replica

log = structlog.get_logger("gateway")

MAX_ATTEMPTS = 4
RETRY_PAUSE_SECONDS = (0.02, 0.1)
"""Between attempts at a lone Triton: random, so that retries of many calls are spread, and longer each time."""


class RetryBudget:
    """Limits retries, so that they do not overload a failing server.

    Each request earns a fraction of a retry, and each retry costs one; a reserve covers the loss of a server.
    """

    def __init__(self, earned: float = 0.2, reserve: float = 256.0) -> None:
        self._earned = earned
        self._reserve = reserve
        self._balance = reserve
        self.requests = 0
        """Requests since the last retry, which are not in the balance yet; the sender of a request adds it."""

    def withdraw(self) -> bool:
        """Whether a retry is allowed now; if so, it is paid for."""
        self._balance = min(self._reserve, self._balance + self.requests * self._earned)
        self.requests = 0
        if self._balance < 1:
            return False
        self._balance -= 1
        return True


class Retries(RetryBudget):
    """Decides on the retry of each failed call."""

    async def wait(
        self, error: TritonUnreachable | ModelUnavailable, call: Call, attempts: int, *, elsewhere: bool
    ) -> None:
        """Return when a call that has failed with `error` may be sent again; raises `error` if it may not.

        `elsewhere` is whether another Triton is ready, to which it is sent at once. Raises DeadlineExceeded.
        """
        if not elsewhere and (isinstance(error, ModelUnavailable) or attempts >= MAX_ATTEMPTS):
            raise error
        if not self.withdraw():
            raise error
        if not elsewhere:
            await asyncio.sleep(random.uniform(*RETRY_PAUSE_SECONDS) * attempts)  # noqa: S311  # no secret
        if call.deadline.passed:
            raise DeadlineExceeded from error
        metrics.RETRIES.inc()

    def count(self) -> None:
        """Pay for the retry of a call whose images are sent alone; raises ModelUnavailable if it is not allowed."""
        if not self.withdraw():
            raise ModelUnavailable
        metrics.RETRIES.inc()


class Suspects:
    """Sends images that were in flight when a process died; `infer_at` sends a call to one Triton."""

    def __init__(
        self,
        pool: TritonPool,
        quarantine: Quarantine,
        infer_at: Callable[[Replica, Call], Awaitable[InferResult]],
    ) -> None:
        self._pool = pool
        self._quarantine = quarantine
        self._infer_at = infer_at
        self._one = asyncio.Lock()

    async def infer_apart(
        self, call: Call, suspects: Sequence[int], infer: Callable[[Call], Awaitable[InferResult]]
    ) -> InferResult:
        """Send the suspects of a call, by their rows, each alone, and the others together with `infer`."""
        results = [(row, await self._infer_alone(_rows(call, [row]), ())) for row in suspects]
        if others := [row for row in range(len(call.batch)) if row not in suspects]:
            answer = await infer(_rows(call, others))
            results += [(row, replace(answer, rows=(one,))) for row, one in zip(others, answer.rows, strict=True)]
        return _joined(results)

    async def infer_each(self, call: Call, tried: Collection[str]) -> InferResult:
        """Send each image of a call alone, to Tritons other than those in `tried`."""
        return _joined([(row, await self._infer_alone(_rows(call, [row]), tried)) for row in range(len(call.batch))])

    async def _infer_alone(self, call: Call, tried: Collection[str]) -> InferResult:
        """Send one suspect alone; only one suspect is in flight at a time.

        All instances of its Triton have just answered a probe, and this gateway process has no other call there, so a
        process that dies now was crashed by this image.
        """
        try:
            async with asyncio.timeout(call.deadline.left_seconds):
                await self._one.acquire()
            try:
                return await self._infer_suspect(call, tried)
            finally:
                self._one.release()
        except RequestError:
            raise  # an unknown model or label: an error of the request
        except (GatewayError, TimeoutError) as exc:
            error = exc if isinstance(exc, GatewayError) else DeadlineExceeded()
            return InferResult(call.model_name, call.model_version, (Row(decoded=False, error=error),))

    async def _infer_suspect(self, call: Call, tried: Collection[str]) -> InferResult:
        (code,) = call.batch.seals
        if self._quarantine.is_refused(code):
            raise ImageQuarantined
        ready = self._pool.ready(call.model_name, call.model_version, tried)
        if not ready:
            raise ModelUnavailable
        replica = self._pool.least_loaded(ready)
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(call.deadline.left_seconds):
                    await stack.enter_async_context(replica.gate.alone())
                    if await replica.checker.fails_anywhere(call.model_name, call.model_version):
                        raise ModelUnavailable
                result = await self._infer_at(replica, call)  # not cancelled: that crashes a Triton before 2.53
        except StubDied as exc:
            self._quarantine.refuse(code)
            metrics.IMAGES_QUARANTINED.inc()
            event = {"triton": replica.address, "model": exc.step, "image": code.hex()[:16]}
            log.warning("image_quarantined", **event, request_id=call.request_id)
            raise ImageQuarantined from exc
        self._quarantine.clear(code)
        return result


def _rows(call: Call, rows: Sequence[int]) -> Call:
    """The same call for some of its images."""
    return call if len(rows) == len(call.batch) else replace(call, batch=call.batch.rows(rows))


def _joined(results: Sequence[tuple[int, InferResult]]) -> InferResult:
    """Join results of one row each; model and version come from an answered row, if there is one."""
    first = next((result for _, result in results if result.rows[0].error is None), results[0][1])
    return replace(first, rows=tuple(result.rows[0] for _, result in sorted(results, key=lambda pair: pair[0])))
