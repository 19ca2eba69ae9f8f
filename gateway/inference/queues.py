"""Images that wait for a call, and which of them make the next one.

Requests take turns: each call has one image of each request that waits, and more while it has space.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gateway.deadline import Deadline
from gateway.inference.backend import Backend, CallLimits, InferResult
from gateway.inference.expansion import Report
from gateway.inference.record import ImageRecord
from gateway.inference.request_spec import RequestSpec
from gateway.inference.request_stats import Stage
from gateway.inference.result import Result
from gateway.inference.tools import BatchLimits
from gateway.limits.admission import COSTLY_SHARE, Permit

CALL_SECONDS = 0.1
"""Expected seconds of decoding in one call; an image that takes longer is alone in its call."""
LIMITS_SECONDS = 1.0
"""How long the backend's limits of calls are cached."""


class Lane(NamedTuple):
    """Images that may share a call: similar in size and in the time to decode them.

    A batch is padded to its longest image. Images whose sizes share their highest bit differ by less than a factor of
    two, so padding less than doubles the bytes, whatever sizes are mixed. For a model that takes no padding, `size` is
    the length itself.
    """

    size: int
    costly: bool


ALONE = Lane(0, costly=False)
"""The lane of images of which each has a call of its own, beyond the calls that keep the Tritons busy."""


@dataclass(eq=False, slots=True)
class QueuedImage:
    """An image with its permit, from its admission to its result; `report` is called with the result.

    `file` is the result of its file so far: its name and size.
    """

    queue: "RequestQueue" = field(repr=False)
    file: Result
    payload: bytes = field(repr=False)
    permit: Permit
    deadline: Deadline
    report: Report
    decode_seconds: float = 0.0
    """Expected processor time of decoding in the preprocessor."""
    record: ImageRecord | None = None
    """What observers need of the image, if any do."""
    lane: Lane = field(init=False)
    seal: bytes = b""
    timer: asyncio.TimerHandle | None = None
    call: "BatchCall | None" = None
    """The call that the image is in; None before."""
    stage: Stage | None = None
    """The stage of the request's statistics that it has entered, and leaves with its result."""


class Batching(Protocol):
    """Sends the images of requests; see gateway.inference.batching."""

    async def add(self, item: QueuedImage) -> None:
        """Send an image, or let it wait for a call."""
        ...

    def drop(self, item: QueuedImage) -> None:
        """Forget an image without a result, since its request has ended."""
        ...


class RequestQueue:
    """The images of one request that have no result yet; `close` drops them.

    `on_error` is called with an error that ends the request, and is set by the request.
    """

    def __init__(self, batcher: Batching, spec: RequestSpec) -> None:
        self.batcher = batcher
        self.spec = spec
        self.context = copy_context()
        """The request's trace and log fields."""
        self.group = (spec.model_version, spec.selection, spec.embeddings)
        """Images share a call only with those of the same group."""
        self.on_error: Callable[[Exception], None] = _ignore
        self.images: set[QueuedImage] = set()
        self.lanes: dict[Lane, deque[QueuedImage]] = {}
        """The images that wait for a call; lanes alternate."""
        self.calls = 0
        """Calls in flight with images of this request."""
        self.closed = False

    def close(self) -> None:
        """Drop every image: those in calls with other requests' images are computed, but have no result."""
        self.closed = True
        self.on_error = _ignore  # the request and its queue refer to each other, and full garbage collections are long
        if self.images:
            # Waiting ones first: a call that is abandoned frees its place, and must not be followed by one with them.
            for item in sorted(self.images, key=lambda item: item.call is not None):
                self.batcher.drop(item)

    def fail(self, error: Exception) -> None:
        """Drop every image, and end the request with an error."""
        on_error = self.on_error
        self.close()
        on_error(error)


@dataclass(eq=False, slots=True)
class BatchCall:
    """A call in flight."""

    items: list[QueuedImage]
    queues: Collection[RequestQueue]
    """The requests of its images."""
    cancellable: bool
    counted: bool
    """Whether it counts as one of those that keep the Tritons busy."""
    costly: bool
    task: "asyncio.Task[InferResult]" = field(init=False)
    began: float = field(init=False)

    def open_items(self) -> list[QueuedImage]:
        """Its images that have no result yet."""
        return [item for item in self.items if item.call is self]


class ModelQueue:
    """The requests that wait for calls of one model, and the calls in flight."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: dict[RequestQueue, None] = {}
        """Requests with waiting images, in the order of their turns."""
        self.calls = 0
        self.counted = 0
        self.costly = 0
        """Calls in flight: all of them, those that keep the Tritons busy, and those of costly images."""
        self.limits: CallLimits | None = None
        """The backend's limits of calls, at most LIMITS_SECONDS old at the last call; None if it does not know them."""
        self._limits_until = 0.0

    def add(self, item: QueuedImage) -> None:
        """Let an image wait."""
        lanes = item.queue.lanes
        if item.lane not in lanes:
            lanes[item.lane] = deque()
        lanes[item.lane].append(item)
        self.waiting.setdefault(item.queue)

    def remove(self, item: QueuedImage) -> None:
        """Forget a waiting image, if it waits."""
        queue = item.queue
        images = queue.lanes.get(item.lane)
        if images is not None and item in images:
            images.remove(item)
            if not images:
                del queue.lanes[item.lane]
            if not queue.lanes:
                del self.waiting[queue]

    def uncount(self, call: BatchCall) -> None:
        """Do not count a call as one of those that keep the Tritons busy; a second call does nothing."""
        self.counted -= call.counted
        self.costly -= call.costly
        call.counted = call.costly = False

    def next(self, backend: Backend, most: BatchLimits) -> list[QueuedImage]:
        """Take the images of the next call; none if none may leave now."""
        for queue in self.waiting:
            if queue.calls >= most.max_calls:
                continue
            now = asyncio.get_running_loop().time()
            if (limits := self.limits) is None or now >= self._limits_until:
                limits = self.limits = backend.call_limits(self.name, queue.spec.model_version, most.max_images)
                self._limits_until = now + LIMITS_SECONDS
            for lane in queue.lanes:
                if lane is ALONE or limits is None:
                    return self._take(queue, lane, most.max_images, most)
                costly_calls = max(1, int(limits.calls * COSTLY_SHARE))
                if self.counted < limits.calls and not (lane.costly and self.costly >= costly_calls):
                    return self._take(queue, lane, min(most.max_images, limits.images), most)
        return []

    def _take(self, first: RequestQueue, lane: Lane, max_images: int, most: BatchLimits) -> list[QueuedImage]:
        """Take images of one lane, one of each request in turn, beginning with `first`, until the call is full."""
        turns = deque((first,))
        if lane is ALONE:
            max_images = 1
        elif len(self.waiting) > 1:
            turns.extend(
                queue
                for queue in self.waiting
                if queue is not first
                and lane in queue.lanes
                and queue.group == first.group
                and queue.calls < most.max_calls
            )
        items: list[QueuedImage] = []
        longest, seconds = 0, 0.0
        while turns and len(items) < max_images:
            queue = turns.popleft()
            images = queue.lanes[lane]
            longest, seconds = max(longest, len(images[0].payload)), seconds + images[0].decode_seconds
            if items and (longest * (len(items) + 1) > most.max_bytes or seconds > CALL_SECONDS):
                break
            items.append(images.popleft())
            del queue.lanes[lane], self.waiting[queue]
            if images:
                queue.lanes[lane] = images
                turns.append(queue)
            if queue.lanes:
                self.waiting[queue] = None  # its next turn is after those of all others
        return items


def _ignore(_error: Exception) -> None:
    """Do nothing."""
