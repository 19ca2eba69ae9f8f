"""Requests whose images wait for a call, and which of the images make the next one.

Requests take turns: each call has one image of each request that waits, and more while it has space.
"""

import asyncio
from collections import deque

from gateway.inference.backend import Backend, CallLimits
from gateway.inference.request import ALONE, BatchCall, Image, Lane, Request
from gateway.inference.tools import BatchLimits
from gateway.limits.admission import COSTLY_SHARE

CALL_SECONDS = 0.1
"""Expected seconds of decoding in one call; an image that takes longer is alone in its call."""
LIMITS_SECONDS = 1.0
"""How long the backend's limits of calls are cached."""


class ModelQueue:
    """The requests that wait for calls of one model, and the calls in flight."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: dict[Request, None] = {}
        """Requests with waiting images, in the order of their turns."""
        self.calls = 0
        self.counted = 0
        self.costly = 0
        """Calls in flight: all of them, those that keep the Tritons busy, and those of costly images."""
        self.limits: CallLimits | None = None
        """The backend's limits of calls, at most LIMITS_SECONDS old at the last call; None if it does not know them."""
        self._limits_until = 0.0

    def add(self, image: Image) -> None:
        """Let an image wait."""
        lanes = image.request.lanes
        if image.lane not in lanes:
            lanes[image.lane] = deque()
        lanes[image.lane].append(image)
        self.waiting.setdefault(image.request)

    def remove(self, image: Image) -> None:
        """Forget a waiting image, if it waits."""
        request = image.request
        waiting = request.lanes.get(image.lane)
        if waiting is not None and image in waiting:
            waiting.remove(image)
            if not waiting:
                del request.lanes[image.lane]
            if not request.lanes:
                del self.waiting[request]

    def uncount(self, call: BatchCall) -> None:
        """Do not count a call as one of those that keep the Tritons busy; a second call does nothing."""
        self.counted -= call.counted
        self.costly -= call.costly
        call.counted = call.costly = False

    def next(self, backend: Backend, most: BatchLimits) -> list[Image]:
        """Take the images of the next call; none if none may leave now."""
        for request in self.waiting:
            if request.calls >= most.max_calls:
                continue
            now = asyncio.get_running_loop().time()
            if (limits := self.limits) is None or now >= self._limits_until:
                limits = self.limits = backend.call_limits(self.name, request.spec.model_version, most.max_images)
                self._limits_until = now + LIMITS_SECONDS
            for lane in request.lanes:
                if lane is ALONE or limits is None:
                    return self._take(request, lane, most.max_images, most)
                costly_calls = max(1, int(limits.calls * COSTLY_SHARE))
                if self.counted < limits.calls and not (lane.costly and self.costly >= costly_calls):
                    return self._take(request, lane, min(most.max_images, limits.images), most)
        return []

    def _take(self, first: Request, lane: Lane, max_images: int, most: BatchLimits) -> list[Image]:
        """Take images of one lane, one of each request in turn, beginning with `first`, until the call is full."""
        turns = deque((first,))
        if lane is ALONE:
            max_images = 1
        elif len(self.waiting) > 1:
            turns.extend(
                request
                for request in self.waiting
                if request is not first
                and lane in request.lanes
                and request.group == first.group
                and request.calls < most.max_calls
            )
        items: list[Image] = []
        longest, seconds = 0, 0.0
        while turns and len(items) < max_images:
            request = turns.popleft()
            images = request.lanes[lane]
            longest, seconds = max(longest, len(images[0].payload)), seconds + images[0].decode_seconds
            if items and (longest * (len(items) + 1) > most.max_bytes or seconds > CALL_SECONDS):
                break
            items.append(images.popleft())
            del request.lanes[lane], self.waiting[request]
            if images:
                request.lanes[lane] = images
                turns.append(request)
            if request.lanes:
                self.waiting[request] = None  # its next turn is after those of all others
        return items
