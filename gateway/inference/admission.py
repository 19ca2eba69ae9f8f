"""How many images, and how many bytes of them, may be in flight and waiting at once."""

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass
from typing import Self

from gateway import metrics
from gateway.errors import Overloaded


class Permit:
    """Leave for one image of `nbytes` to be in flight; released once, however often `release` is called."""

    __slots__ = ("_kept", "_leaving", "_permits", "nbytes")

    def __init__(self, permits: "Permits", nbytes: int) -> None:
        self._permits: Permits | None = permits
        self._kept = self._leaving = False
        self.nbytes = nbytes

    def shrink(self, nbytes: int) -> None:
        """Give back what is no longer needed beyond `nbytes`."""
        if self._permits is not None and nbytes < self.nbytes:
            self._permits.admission._give_back(self.nbytes - nbytes, images=0)
            self.nbytes = nbytes

    def keep(self) -> None:
        """Begin work that cannot be stopped: until it has ended (`settle`), the permit stays out."""
        self._kept = True

    def settle(self) -> None:
        """End such work."""
        self._kept = False
        if self._leaving:
            self._give_back()

    def release(self) -> None:
        """Make room for the next image that waits, as soon as what cannot be stopped has ended."""
        if self._permits is not None:
            self._permits._forget(self)
            self._leaving = True
            if not self._kept:
                self._give_back()

    def _give_back(self) -> None:
        if self._permits is not None:
            permits, self._permits = self._permits, None
            permits.admission._give_back(self.nbytes)


class Permits:
    """All permits of one request; those that are left when it ends are released.

    No permit exists outside one of these, so none can be lost.
    """

    def __init__(self, admission: "Admission") -> None:
        self.admission = admission
        self._permits: set[Permit] = set()
        self._released = asyncio.Event()

    def __len__(self) -> int:
        return len(self._permits)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for permit in list(self._permits):
            permit.release()

    def try_acquire(self, nbytes: int) -> Permit | None:
        """A permit if an image of `nbytes` fits now and nobody waits before it, else None.

        One larger than every limit fits when nothing else is in flight.
        """
        taken = self.admission._try_take(nbytes)
        return None if taken is None else self._add(taken)

    async def acquire(self, nbytes: int, *, begun: bool = False) -> Permit:
        """Wait until an image of `nbytes` fits; for a request of which others have come so far, others may have to go.

        Raises Overloaded where too many wait.
        """
        return self.try_acquire(nbytes) or self._add(await self.admission._wait(nbytes, begun=begun))

    async def fewer_than(self, count: int) -> None:
        """Wait until the request has less than `count` permits; one task at a time."""
        while len(self._permits) >= count:
            self._released.clear()
            await self._released.wait()

    def _add(self, nbytes: int) -> Permit:
        permit = Permit(self, nbytes)
        self._permits.add(permit)
        return permit

    def _forget(self, permit: Permit) -> None:
        self._permits.discard(permit)
        self._released.set()


@dataclass(eq=False, slots=True)
class _Place:
    """An image in the queue: `turn` is done when it has been let through, or must go."""

    nbytes: int
    begun: bool
    turn: asyncio.Future[None]


class Admission:
    """Lets images through in the order in which they came.

    A request that has one image waiting reads no further, so it has one place in the queue however many files it
    brings, and requests take turns.
    """

    def __init__(
        self,
        *,
        max_images: int,
        max_bytes: int,
        max_images_waiting: int,
        max_wait_seconds: float,
    ) -> None:
        self.max_images = max_images
        self.max_bytes = max_bytes
        self._max_images_waiting = max_images_waiting
        self.max_wait_seconds = max_wait_seconds
        self._images = 0
        self._bytes = 0
        self._waiting: deque[_Place] = deque()
        metrics.IMAGES_IN_FLIGHT_LIMIT.set(max_images)
        metrics.BYTES_IN_FLIGHT_LIMIT.set(max_bytes)
        metrics.IMAGES_WAITING_LIMIT.set(max_images_waiting)

    @property
    def images_in_flight(self) -> int:
        """Images that have a permit."""
        return self._images

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of the images that have a permit."""
        return self._bytes

    @property
    def images_waiting(self) -> int:
        """Images in the queue."""
        return len(self._waiting)

    def check(self) -> None:
        """Raise Overloaded if a request that comes now would find the queue full; costs nothing, not even its body."""
        if len(self._waiting) >= self._max_images_waiting:
            raise self._full()

    def has_room(self, images: int, nbytes: int) -> bool:
        """Whether so much would fit now, and nobody waits; takes nothing."""
        return not self._waiting and self._images + images <= self.max_images and self._bytes + nbytes <= self.max_bytes

    def permits(self) -> Permits:
        """The permits of one request, none as yet."""
        return Permits(self)

    def _try_take(self, nbytes: int) -> int | None:
        nbytes = min(nbytes, self.max_bytes)
        if self._waiting or not self._fits(nbytes):
            return None
        self._take(nbytes)
        return nbytes

    async def _wait(self, nbytes: int, *, begun: bool) -> int:
        if len(self._waiting) >= self._max_images_waiting:
            self._make_place(begun=begun)
        place = _Place(min(nbytes, self.max_bytes), begun, asyncio.get_running_loop().create_future())
        self._waiting.append(place)
        metrics.IMAGES_WAITING.inc()
        try:
            await place.turn
        except asyncio.CancelledError:
            if place.turn.done() and not place.turn.cancelled() and place.turn.exception() is None:
                self._give_back(place.nbytes)  # the turn had come in the moment of giving up
            raise
        finally:
            metrics.IMAGES_WAITING.dec()
            with contextlib.suppress(ValueError):  # it has left the queue, unless it gave up
                self._waiting.remove(place)
                self._admit()
        return place.nbytes

    def _make_place(self, *, begun: bool) -> None:
        """Refuse the newest image of a request that has none through; raises Overloaded if that is who asks.

        A request that has begun would be left half done, and who comes first would make room for who comes last.
        """
        newest = next((place for place in reversed(self._waiting) if not place.begun), None)
        if not begun or newest is None:
            raise self._full()
        self._waiting.remove(newest)
        if not newest.turn.done():
            newest.turn.set_exception(self._full())

    def _full(self) -> Overloaded:
        value = self._max_images_waiting
        return Overloaded(
            f"{value} images are already waiting, the maximum; try again later.",
            limit="max_images_waiting",
            value=value,
        )

    def _fits(self, nbytes: int) -> bool:
        return self._images < self.max_images and self._bytes + nbytes <= self.max_bytes

    def _take(self, nbytes: int) -> None:
        self._images += 1
        self._bytes += nbytes
        metrics.IMAGES_IN_FLIGHT.inc()
        metrics.BYTES_IN_FLIGHT.inc(nbytes)

    def _give_back(self, nbytes: int, images: int = 1) -> None:
        self._images -= images
        self._bytes -= nbytes
        metrics.IMAGES_IN_FLIGHT.dec(images)
        metrics.BYTES_IN_FLIGHT.dec(nbytes)
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0].nbytes):
            place = self._waiting.popleft()
            if not place.turn.done():
                self._take(place.nbytes)
                place.turn.set_result(None)
