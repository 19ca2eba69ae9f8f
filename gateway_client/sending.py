"""One call of `classify`: pictures on their way, and the results that are ready."""

import asyncio
import base64
import random
import sys
import time
from array import array
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import httpx

from gateway_client.batches import Batches, Loaded
from gateway_client.documents import (
    Malformed,
    integer,
    number,
    objects,
    optional_integer,
    optional_object,
    optional_text,
    text,
)
from gateway_client.errors import (
    GatewayError,
    RequestError,
    RequestTooLarge,
    TooManyFiles,
    TooManyFrames,
    UploadTimeout,
    UploadTooSlow,
)
from gateway_client.faults import ConnectionLost, UnexpectedAnswer, Unreachable
from gateway_client.results import Frame, Prediction, Result
from gateway_client.throttle import Throttle
from gateway_client.wire import Silence, error_from, lines

OnWait = Callable[[GatewayError, float], None]
"""Told why nothing is sent for how many seconds."""

RESULTS_AHEAD = 1024
FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 10.0
_TOO_MUCH = (TooManyFiles, RequestTooLarge, UploadTimeout, UploadTooSlow)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of each picture, and how long to go on trying."""

    parameters: Mapping[str, Any]
    retry_seconds: float
    on_wait: OnWait | None = None
    path: str = "predict"


@dataclass(slots=True)
class _Patience:
    """How long pictures have been waiting since the service last answered one of them."""

    seconds: float
    attempts: int = 0
    since: float = field(default_factory=time.monotonic)

    def renew(self) -> None:
        self.attempts, self.since = 0, time.monotonic()

    def pause(self, fault: GatewayError) -> float | None:
        """Seconds until the next attempt; None when patience is at an end."""
        left = self.seconds - (time.monotonic() - self.since)
        if left <= 0:
            return None
        asked = fault.retry_after_seconds or 0.0
        wait = max(asked, min(FIRST_PAUSE_SECONDS * 2.0**self.attempts, LONGEST_PAUSE_SECONDS))
        self.attempts += 1
        # Requests that were refused together must not all come back together.
        return min(left, wait * (1 + random.random() / 2))  # noqa: S311  # no secret


class Sending:
    """Sends batches side by side; `results` yields what is ready. Whatever runs ends with `close`."""

    def __init__(self, http: httpx.AsyncClient, batches: Batches, asked: Asked, throttle: Throttle) -> None:
        self._http = http
        self._batches = batches
        self._asked = asked
        self._throttle = throttle
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready: list[Result] = []
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._failure: BaseException | None = None
        self._ended = False

    async def results(self) -> AsyncGenerator[list[Result], None]:
        """Results as they are ready, each exactly once; raises what ends the whole call."""
        self._spawn(self._feed())
        try:
            while self._ready or not self._ended:
                if not self._ready:
                    self._changed.clear()
                    await self._changed.wait()
                    continue
                ready, self._ready = self._ready, []
                self._room.set()
                yield ready
            if self._failure is not None:
                raise self._failure
        finally:
            await self._close()

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._batches.close()

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
            await self._throttle.acquire()
            self._spawn(self._deliver_and_release(batch))

    async def _deliver_and_release(self, batch: list[Loaded]) -> None:
        try:
            for loaded in batch:
                if loaded.error is not None:
                    await self._fail(loaded, loaded.error)
            await self._deliver([loaded for loaded in batch if loaded.error is None])
        finally:
            self._throttle.release()

    async def _deliver(self, waiting: list[Loaded], patience: _Patience | None = None) -> None:
        """Send pictures until each of them has a result; raises what no further attempt mends.

        The parts of a request share its patience: it is renewed by each picture that has a result.
        """
        patience = patience or _Patience(self._asked.retry_seconds)
        while waiting:
            before = len(waiting)
            waiting, fault = await self._send(waiting)
            if fault is None:
                self._throttle.succeeded()
                return
            if len(waiting) < before:
                patience.renew()
            if len(waiting) > 1 and (
                isinstance(fault, _TOO_MUCH) or (isinstance(fault, ConnectionLost) and patience.attempts)
            ):
                # Too much for one request; or one of them is what the connection breaks on, which halving finds.
                middle = len(waiting) // 2
                await self._deliver(waiting[:middle], patience)
                await self._deliver(waiting[middle:], patience)
                return
            if isinstance(fault, TooManyFrames):  # together with the others they have more than one request may
                middle = (len(waiting) + 1) // 2
                await self._deliver(waiting[:middle], patience)
                await self._deliver(waiting[middle:], patience)
                return
            if isinstance(fault, RequestError | UnexpectedAnswer) and not isinstance(fault, _TOO_MUCH):
                raise fault
            pause = patience.pause(fault) if fault.retryable else None
            if pause is None:
                await self._give_up(waiting, fault)
                return
            if not isinstance(fault, ConnectionLost):
                self._throttle.refused()
            if self._asked.on_wait is not None:
                self._asked.on_wait(fault, pause)
            await asyncio.sleep(pause)

    async def _send(self, waiting: list[Loaded]) -> tuple[list[Loaded], GatewayError | None]:
        """One attempt: the pictures that have no result yet, and why."""
        left = dict(enumerate(waiting))
        fault: GatewayError | None = None
        try:
            async with aclosing(lines(self._http, self._asked.path, waiting, self._asked.parameters)) as received:
                async for line in received:
                    error = _error(line)
                    last = _last_error(line) if len(waiting) > 1 else None
                    index = integer(line, "index")
                    if isinstance(last, TooManyFrames):  # perhaps because of what came before it
                        fault = last
                    elif error is not None and error.retryable:
                        fault = error
                    elif (loaded := left.get(index)) is not None:
                        result = _result(loaded, line, error)
                        del left[index]
                        await self._put(result)
        except Malformed as exc:
            fault = UnexpectedAnswer(f"A result of {self._http.base_url} is not a gateway's: {exc}.")
        except GatewayError as exc:
            fault = exc
        if not left:
            return [], None
        return list(left.values()), fault or ConnectionLost("The answer ended before this picture's result.")

    async def _give_up(self, waiting: list[Loaded], fault: GatewayError) -> None:
        if isinstance(fault, ConnectionLost) and not await self._alive():
            raise Unreachable(f"The gateway at {self._http.base_url} is gone: {fault}") from fault
        for loaded in waiting:
            await self._fail(loaded, fault)

    async def _alive(self) -> bool:
        try:
            async with Silence(self._http.timeout.read), self._http.stream("GET", "health/live") as response:
                return response.is_success
        except (httpx.HTTPError, TimeoutError):
            return False

    async def _fail(self, loaded: Loaded, error: GatewayError) -> None:
        await self._put(Result(loaded.index, loaded.picture.name, loaded.picture.source, error=error))

    async def _put(self, result: Result) -> None:
        """Hand a result on; waits while too many have not been looked at."""
        self._ready.append(result)
        self._changed.set()
        while len(self._ready) > RESULTS_AHEAD:
            self._room.clear()
            await self._room.wait()


def _result(loaded: Loaded, line: dict[str, Any], error: GatewayError | None) -> Result:
    model = optional_object(line, "model") or {}
    return Result(
        loaded.index,
        loaded.picture.name,
        loaded.picture.source,
        optional_integer(line, "width"),
        optional_integer(line, "height"),
        _predictions(line),
        error,
        optional_text(model, "name"),
        optional_text(model, "version"),
        tuple(
            Frame(
                integer(each, "index"),
                None if each.get("time_s") is None else number(each, "time_s"),
                _predictions(each),
                _error(each),
            )
            for each in objects(line, "frames")
        ),
        _vector(optional_text(line, "embedding")),
    )


def _error(line: dict[str, Any]) -> GatewayError | None:
    if "error" not in line:
        raise Malformed("a result has no member 'error'")
    document = optional_object(line, "error")
    return error_from(document) if document else None


def _last_error(line: dict[str, Any]) -> GatewayError | None:
    """What befell a picture, or the last of its frames."""
    frames = objects(line, "frames")
    return _error(line) or (_error(frames[-1]) if frames else None)


def _predictions(line: dict[str, Any]) -> tuple[Prediction, ...]:
    return tuple(
        Prediction(text(each, "label"), integer(each, "class_id"), number(each, "score"))
        for each in objects(line, "predictions")
    )


def _vector(encoded: str | None) -> "array[float] | None":
    """A vector out of the base64 of its 32-bit floats, little-endian."""
    if encoded is None:
        return None
    try:
        vector = array("f", base64.b64decode(encoded, validate=True))
    except ValueError as exc:
        raise Malformed("'embedding' is not the base64 of 32-bit floats") from exc
    if sys.byteorder == "big":
        vector.byteswap()
    return vector
