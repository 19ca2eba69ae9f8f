"""Uploads in, one result for each out; and observers of all images, such as the prediction log and shadow versions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import structlog

from gateway.inference.batching import Batcher
from gateway.inference.request import DisconnectWatcher, Image, InferenceRequest, Step, Take, nothing
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Row
from gateway.inference.tools import CLOSING_SECONDS, Tools
from gateway.ingest.upload import Uploads
from gateway.limits.account import Account
from gateway.timing import interrupted_after
from gateway.values.arguments import taking

log = structlog.get_logger("gateway")

C = TypeVar("C", bound=Callable[..., None])


@dataclass(frozen=True, slots=True)
class ShadowClass:
    """The top-1 class of a shadow version."""

    version: str
    class_id: int
    score: float


class Observer:
    """Sees images and their rows. A method that is not overridden costs nothing; none waits or raises.

    Copy what you need of an image immediately: a reference to it keeps its request alive.
    """

    best_classes: int = 0
    """The number of best classes in each row's `best`, regardless of the request's selection."""
    keeps_files: bool = False
    """Whether `done` needs `image.upload.data`; if not, the file of an image that was decoded here is empty by then."""
    takes_feedback: bool = False
    """Whether clients may report true labels."""

    async def start(self, tools: Tools, others: "Observers") -> None:
        """Start with the service; parts of a start that fail are tried again while the service runs."""

    async def close(self) -> None:
        """End with the service, after its last result."""

    def done(self, image: Image, row: Row) -> None:
        """Take the finished row of one file; of one with several images, the first of them that was answered."""

    def call_done(self, spec: RequestSpec, images: Sequence[tuple[Image, Row]]) -> None:
        """Take the images of one request that were in a call, with their rows, after their results."""

    def disagreed(self, image: Image, row: Row, shadow: ShadowClass) -> None:
        """Take an image whose top-1 class differs from the top-1 class of a shadow version."""


_PLAIN = Observer()
CLOSE_SECONDS = 10.0
"""Longest time that an observer may take to end."""


class Observers:
    """All observers of a service; calls those that override a method.

    An observer's exception is logged with its name and affects no request; only a failure to start ends the service.
    """

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._all = observers
        self.done = _calls(observers, _PLAIN.done)
        self.call_done = _calls(observers, _PLAIN.call_done)
        self.disagreed = _calls(observers, _PLAIN.disagreed)
        self.keep_files = any(each.keeps_files for each in observers)
        self.best_classes = max((each.best_classes for each in observers), default=0)
        self.take_feedback = any(each.takes_feedback for each in observers)

    async def start(self, tools: Tools) -> None:
        """Start all."""
        for observer in self._all:
            await taking(observer.start, _PLAIN.start)(tools, self)

    async def close(self) -> None:
        """End all, the last one first."""
        for observer in reversed(self._all):
            try:
                async with interrupted_after(CLOSE_SECONDS):
                    await observer.close()
            except Exception:
                log.exception("observer_not_closed", observer=_name(observer), most_seconds=CLOSE_SECONDS)


def _calls(observers: Sequence[Observer], method: C) -> list[C]:
    """The calls of a method of the observers that override it; their exceptions are logged."""
    name = method.__name__

    def guarded(observer: Observer) -> C:
        see = taking(getattr(observer, name), method)

        def call(*arguments: object) -> None:
            try:
                see(*arguments)
            except Exception:
                log.exception("observer_failed", observer=_name(observer), method=name)

        return cast("C", call)

    return [guarded(each) for each in observers if getattr(type(each), name) is not getattr(Observer, name)]


def _name(observer: Observer) -> str:
    return f"{type(observer).__module__}.{type(observer).__qualname__}"


class InferenceService:
    """Classifies the uploads of many requests at once; each goes through `steps`, see gateway.predict.image_steps."""

    def __init__(self, tools: Tools, steps: Sequence[Step], observers: Observers | None = None) -> None:
        self.tools = tools
        self.backend = tools.backend
        self.admission = tools.admission
        self.observers = observers or Observers()
        self._batcher = Batcher(tools, self.observers.call_done, self.observers.best_classes)
        self._steps = tuple(steps)

    async def start(self) -> None:
        """Start the observers."""
        await self.observers.start(self.tools)

    async def run(
        self,
        uploads: Uploads,
        spec: RequestSpec,
        take: Take,
        disconnected: DisconnectWatcher | None = None,
        account: Account | None = None,
    ) -> None:
        """Classify uploads: `take` gets one result for each, in the order of completion.

        Raises an exception of `uploads`, `take` or `disconnected`, which ends the request; an error of one file is in
        its result. Each file has its result within `spec.timeout_seconds` of its last byte. Decoding is charged to
        `account`, or to a new one.

        At the end, all tasks of the request have ended and its permits are released. Exceptions are images in calls,
        and other work in `tools.uncancelled`, that have not ended yet.
        """
        request = self.request(spec, take, account)
        try:
            await request.run(uploads, disconnected)
        finally:
            request.close()

    def request(self, spec: RequestSpec, take: Take = nothing, account: Account | None = None) -> InferenceRequest:
        """A request whose uploads are not read yet; the caller closes it."""
        done, keeps_files = self.observers.done, self.observers.keep_files
        return InferenceRequest(
            self.tools, done, self._steps, self._batcher, spec, take, account, keeps_files=keeps_files
        )

    async def close(self) -> None:
        """End the observers, and wait a limited time for work that cannot be cancelled."""
        await self.observers.close()
        await self.tools.uncancelled.close(CLOSING_SECONDS)
