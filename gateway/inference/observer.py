"""What sees the images of all requests: the prediction log, shadow versions, counts of a plug-in's own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import structlog

from gateway.inference.request import Image
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Row
from gateway.inference.tools import Tools
from gateway.timing import interrupted_after
from gateway.values.arguments import taking

C = TypeVar("C", bound=Callable[..., None])

log = structlog.get_logger("gateway")


@dataclass(frozen=True, slots=True)
class ShadowClass:
    """The top-1 class of a shadow version."""

    version: str
    class_id: int
    score: float


class Observer:
    """Sees images and their rows. A method that is not overridden costs nothing; none waits or raises.

    Take what is needed of an image at once: it holds its request.
    """

    best_classes: int = 0
    """How many best classes `best` of each row has, whatever the request selects."""
    keeps_files: bool = False
    """Whether `done` needs `image.upload.data`; if not, the file of an image that was decoded here is empty by then."""
    takes_feedback: bool = False
    """Whether clients may report true labels."""

    async def start(self, tools: Tools, others: "Observers") -> None:
        """Start with the service; what a start cannot do is retried while the service runs."""

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

    What an observer raises is logged with its name and concerns no request; only a failure to start ends the service.
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
    """The calls of a method of the observers that override it; what one raises is logged."""
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
