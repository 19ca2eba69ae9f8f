"""One call of `classify` or `embed`: sends requests, retries them, and collects results."""

import asyncio
import base64
import random
import sys
import time
from array import array
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import httpx

from gateway_client.batches import Batches, Loaded
from gateway_client.documents import Malformed, reading
from gateway_client.errors import GatewayError, RequestError, ServiceError, connection_lost, unexpected_answer
from gateway_client.results import Prediction, Result
from gateway_client.wire import ProgressTimeout, error_from, lines

OnWait = Callable[[GatewayError, float], None]
"""Called before each pause, with its reason and its length in seconds."""

RESULTS_AHEAD = 1024
FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 10.0
_TOO_MUCH = {"too_many_files", "request_too_large", "upload_timeout"}
"""A request with fewer images may not have these errors."""


@dataclass(frozen=True, slots=True)
class SendOptions:
    """The parameters of each request, and how long to retry it."""

    parameters: dict[str, Any]
    retry_seconds: float
    on_wait: OnWait | None = None
    path: str = "predict"
    one_version: bool = False
    """Whether all images use the model and the version of the first answer."""


@dataclass(slots=True)
class _RetryBudget:
    """Limits the time of retries, counted from the last result."""

    seconds: float
    attempts: int = 0
    since: float = field(default_factory=time.monotonic)

    def reset(self) -> None:
        self.attempts, self.since = 0, time.monotonic()

    def pause(self, fault: GatewayError) -> float | None:
        """Seconds until the next attempt; None when the time is used up."""
        left = self.seconds - (time.monotonic() - self.since)
        if left <= 0:
            return None
        requested = fault.retry_after_seconds or 0.0
        wait = max(requested, min(FIRST_PAUSE_SECONDS * 2.0**self.attempts, LONGEST_PAUSE_SECONDS))
        self.attempts += 1
        # Jitter: requests that were refused together must not be retried together.
        return min(left, wait * (1 + random.random() / 2))  # noqa: S311  # no secret


class Sending:
    """Sends batches concurrently. `results` yields results as they are ready; all tasks end with it."""

    def __init__(self, http: httpx.AsyncClient, batches: Batches, options: SendOptions, concurrency: int) -> None:
        self._http = http
        self._batches = batches
        self._options = options
        self._slots = asyncio.Semaphore(max(1, concurrency))
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready: list[Result] = []
        self._changed = asyncio.Event()
        self._consumed = asyncio.Event()
        self._failure: BaseException | None = None
        self._ended = False

    async def results(self) -> AsyncGenerator[list[Result], None]:
        """Yield results as they are ready, each exactly once; raises the error that ends the whole call."""
        self._spawn(self._feed())
        try:
            while self._ready or not self._ended:
                if not self._ready:
                    self._changed.clear()
                    await self._changed.wait()
                    continue
                ready, self._ready = self._ready, []
                self._consumed.set()
                yield ready
            if self._failure is not None:
                raise self._failure
        finally:
            await self._close()

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = self._failure or task.exception()
        self._ended = self._failure is not None or not self._tasks
        self._changed.set()

    async def _feed(self) -> None:
        while batch := await self._batches.take():
            await self._slots.acquire()
            if self._options.one_version and "version" not in self._options.parameters:
                await self._deliver_and_release(batch)  # the others wait for the version that answers
            else:
                self._spawn(self._deliver_and_release(batch))

    async def _deliver_and_release(self, batch: list[Loaded]) -> None:
        try:
            for loaded in batch:
                if loaded.error is not None:
                    await self._fail(loaded, loaded.error)
            await self._deliver([loaded for loaded in batch if loaded.error is None])
        finally:
            self._slots.release()

    async def _deliver(self, waiting: list[Loaded], budget: _RetryBudget | None = None) -> None:
        """Send images until each of them has a result; raises errors that no retry can change.

        The halves of a split request share its retry budget; each result resets it.
        """
        budget = budget or _RetryBudget(self._options.retry_seconds)
        while waiting:
            before = len(waiting)
            waiting, fault = await self._send(waiting)
            if fault is None:
                return
            if len(waiting) < before:
                budget.reset()
            broken = fault.code == "connection_lost" and budget.attempts
            if len(waiting) > 1 and (fault.code in _TOO_MUCH or broken):
                # Too large for one request, or one image breaks the connection: halving isolates it.
                middle = (len(waiting) + 1) // 2
                await self._deliver(waiting[:middle], budget)
                await self._deliver(waiting[middle:], budget)
                return
            if (isinstance(fault, RequestError) and fault.code not in _TOO_MUCH) or fault.code == "unexpected_answer":
                raise fault
            pause = budget.pause(fault) if fault.retryable else None
            if pause is None:
                await self._give_up(waiting, fault)
                return
            if self._options.on_wait is not None:
                self._options.on_wait(fault, pause)
            await asyncio.sleep(pause)

    async def _send(self, waiting: list[Loaded]) -> tuple[list[Loaded], GatewayError | None]:
        """Make one attempt; return the images that have no result yet, and the reason."""
        left = dict(enumerate(waiting))
        fault: GatewayError | None = None
        try:
            async with aclosing(lines(self._http, self._options.path, waiting, self._options.parameters)) as received:
                async for line in received:
                    with reading():
                        error = None if line["error"] is None else error_from(line["error"])
                        loaded = left.get(line["index"])
                    if error is not None and error.retryable:
                        fault = error
                    elif loaded is not None:
                        result = _result(loaded, line, error)
                        if self._options.one_version and result.version is not None:
                            self._options.parameters.setdefault("model", result.model)
                            self._options.parameters.setdefault("version", result.version)
                        del left[line["index"]]
                        await self._put(result)
        except Malformed as exc:
            fault = unexpected_answer(f"A result of {self._http.base_url} is invalid: {exc}.")
        except GatewayError as exc:
            fault = exc
        if not left:
            return [], None
        return list(left.values()), fault or connection_lost("The response ended before this image's result.")

    async def _give_up(self, waiting: list[Loaded], fault: GatewayError) -> None:
        if fault.code == "connection_lost" and not await self._alive():
            raise ServiceError(f"The gateway at {self._http.base_url} is gone: {fault}", code="unreachable") from fault
        for loaded in waiting:
            await self._fail(loaded, fault)

    async def _alive(self) -> bool:
        try:
            async with ProgressTimeout(self._http.timeout.read), self._http.stream("GET", "health/live") as response:
                return response.is_success
        except (httpx.HTTPError, TimeoutError):
            return False

    async def _fail(self, loaded: Loaded, error: GatewayError) -> None:
        await self._put(Result(loaded.index, loaded.image.name, loaded.image.source, error=error))

    async def _put(self, result: Result) -> None:
        """Queue a result; waits while more than RESULTS_AHEAD are unread."""
        self._ready.append(result)
        self._changed.set()
        while len(self._ready) > RESULTS_AHEAD:
            self._consumed.clear()
            await self._consumed.wait()


def _result(loaded: Loaded, line: dict[str, Any], error: GatewayError | None) -> Result:
    with reading():
        model = line.get("model") or {}
        return Result(
            loaded.index,
            loaded.image.name,
            loaded.image.source,
            line["width"],
            line["height"],
            tuple(
                Prediction(each["label"], int(each["class_id"]), float(each["score"]))
                for each in line.get("predictions") or ()
            ),
            error,
            model.get("name"),
            model.get("version"),
            _embedding(line.get("embedding")),
            line.get("warning"),
        )


def _embedding(encoded: str | None) -> "array[float] | None":
    """Decode the base64 of little-endian 32-bit floats."""
    if encoded is None:
        return None
    embedding = array("f", base64.b64decode(encoded, validate=True))
    if sys.byteorder == "big":
        embedding.byteswap()
    return embedding
