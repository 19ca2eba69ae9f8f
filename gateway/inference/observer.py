"""What sees the images of all requests: the prediction log, shadow versions, counts of a plug-in's own."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.inference.backend import InferResult
from gateway.inference.record import ImageRecord, ShadowClass
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Result
from gateway.inference.tools import Tools


@dataclass(frozen=True, slots=True)
class CallImage:
    """One image of a call that has ended: what was sent, and its result."""

    payload: bytes = field(repr=False)
    seal: bytes
    """See Backend.seal."""
    result: Result
    record: ImageRecord | None


class Observer:
    """Sees images and results. A method that is not overridden costs nothing; none waits or raises."""

    best_classes: int = 0
    """How many best classes each record has, whatever the request selects."""
    keeps_records: bool = False
    """Whether `done` gets an ImageRecord with each result."""
    keeps_embeddings: bool = False
    """Whether records have the embeddings of models that have one."""
    takes_feedback: bool = False
    """Whether clients may report true labels."""

    async def start(self, tools: Tools, others: "Observers") -> None:
        """Start with the service; what a start cannot do is retried while the service runs."""

    async def close(self) -> None:
        """End with the service, after its last result."""

    def done(self, spec: RequestSpec, result: Result, record: ImageRecord | None) -> None:
        """Take the finished result of one file."""

    def call_done(self, spec: RequestSpec, answer: InferResult, images: Sequence[CallImage]) -> None:
        """Take the images of one request that were in a call, with the rows of its answer, after their results."""

    def disagreed(self, spec: RequestSpec, result: Result, record: ImageRecord | None, shadow: ShadowClass) -> None:
        """Take a result whose likeliest class differs from that of a shadow version."""


class Observers:
    """All observers of a service; calls those that override a method."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._all = observers
        self.done = [each.done for each in observers if type(each).done is not Observer.done]
        self.call_done = [each.call_done for each in observers if type(each).call_done is not Observer.call_done]
        self.disagreed = [each.disagreed for each in observers if type(each).disagreed is not Observer.disagreed]
        self.keep_records = any(each.keeps_records for each in observers)
        self.keep_embeddings = any(each.keeps_embeddings for each in observers)
        self.best_classes = max((each.best_classes for each in observers), default=0)
        self.take_feedback = any(each.takes_feedback for each in observers)

    async def start(self, tools: Tools) -> None:
        """Start all."""
        for observer in self._all:
            await observer.start(tools, self)

    async def close(self) -> None:
        """End all, the last one first."""
        for observer in reversed(self._all):
            await observer.close()
