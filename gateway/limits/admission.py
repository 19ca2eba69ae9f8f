"""How many images, how many bytes of them, and how much decoding may be in flight and waiting at once."""

import asyncio
import contextlib
import itertools
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple, Self

from gateway import metrics
from gateway.errors import Overloaded

COSTLY_SECONDS = 0.05
"""An image that takes so long to decode is costly: it waits behind other costly ones, and not before cheap ones."""
SECONDS_PER_DECODER = 2.0
"""How much decoding of costly images may be in flight for each decoder."""
COSTLY_SHARE, COSTLY_BYTES_SHARE = 0.5, 0.75
"""The share of the images in flight and of the queue that costly images may take, and of the bytes in flight."""


class Load(NamedTuple):
    """What one image takes while it is in flight: bytes, and processor time to decode it if it is costly."""

    nbytes: int
    decode_seconds: float = 0.0

    @property
    def costly(self) -> bool:
        """Whether its decoding counts."""
        return self.decode_seconds > 0


_NOTHING = Load(0)


class Permit:
    """Permission for one image to be in flight; released once, however often `release` is called."""

    __slots__ = ("_kept", "_leaving", "_load", "_permits")

    def __init__(self, permits: "Permits", load: Load) -> None:
        self._permits: Permits | None = permits
        self._kept = self._leaving = False
        self._load = load

    def shrink(self, nbytes: int) -> None:
        """Give back what is no longer needed once the image is decoded: all but `nbytes`."""
        if self._permits is not None:
            before, self._load = self._load, Load(min(nbytes, self._load.nbytes))
            self._permits.admission._replace(before, self._load)

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
            permits.admission._give_back(self._load)


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

    def try_acquire(self, nbytes: int, decode_seconds: float = 0.0) -> Permit | None:
        """A permit if an image fits now and no other one waits before it, else None.

        `decode_seconds` is what decoding it in the gateway should take. One larger than every limit fits when nothing
        else is in flight.
        """
        load = self.admission._load(nbytes, decode_seconds)
        return self._add(load) if self.admission._try_take(load) else None

    async def acquire(self, nbytes: int, decode_seconds: float = 0.0, *, begun: bool = False) -> Permit:
        """Wait until an image fits; for a request of which others have come so far, others may have to go.

        Raises Overloaded where too many wait.
        """
        load = self.admission._load(nbytes, decode_seconds)
        if not self.admission._try_take(load):
            await self.admission._wait(load, begun=begun)
        return self._add(load)

    async def fewer_than(self, count: int) -> None:
        """Wait until the request has less than `count` permits; one task at a time."""
        while len(self._permits) >= count:
            self._released.clear()
            await self._released.wait()

    def _add(self, load: Load) -> Permit:
        permit = Permit(self, load)
        self._permits.add(permit)
        return permit

    def _forget(self, permit: Permit) -> None:
        self._permits.discard(permit)
        self._released.set()


@dataclass(eq=False, slots=True)
class _Waiter:
    """An image in the queue: `turn` is done when it has been let through, or must go."""

    number: int
    load: Load
    begun: bool
    turn: asyncio.Future[None]


class Admission:
    """Lets images through in the order in which they came; cheap ones pass costly ones that wait for a decoder.

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
        decoders: int = 1,
    ) -> None:
        self.max_images = max_images
        self.max_bytes = max_bytes
        self._max_images_waiting = max_images_waiting
        self.max_wait_seconds = max_wait_seconds
        self._decoders = decoders
        self._images = 0
        self._bytes = 0
        self._costly: list[Load] = []
        """Of the images in flight that are not yet decoded."""
        self._numbers = itertools.count()
        self._cheap_line: deque[_Waiter] = deque()
        self._costly_line: deque[_Waiter] = deque()
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
        return len(self._cheap_line) + len(self._costly_line)

    def check(self) -> None:
        """Raise Overloaded if a request that comes now would find the queue full; costs nothing, not even its body."""
        if self.images_waiting >= self._max_images_waiting:
            raise self._full()

    def has_room(self, images: int, nbytes: int) -> bool:
        """Whether so much would fit now, and no image waits; takes nothing."""
        fits = self._images + images <= self.max_images and self._bytes + nbytes <= self.max_bytes
        return fits and not self.images_waiting

    def permits(self) -> Permits:
        """The permits of one request, none as yet."""
        return Permits(self)

    def _load(self, nbytes: int, decode_seconds: float) -> Load:
        return Load(min(nbytes, self.max_bytes), decode_seconds if decode_seconds >= COSTLY_SECONDS else 0.0)

    def _try_take(self, load: Load) -> bool:
        if load.costly and (self._costly_line or not self._may_decode(load)):
            return False
        if (self.images_waiting and self._next() is not None) or not self._fits(load):
            return False
        self._take(load)
        return True

    async def _wait(self, load: Load, *, begun: bool) -> None:
        line = self._costly_line if load.costly else self._cheap_line
        most = self._max_images_waiting
        if self.images_waiting >= most:
            self._make_place(self._costly_line, self._cheap_line, begun=begun)
        elif load.costly and len(line) >= max(most * COSTLY_SHARE, 1):
            self._make_place(line, begun=begun)
        place = _Waiter(next(self._numbers), load, begun, asyncio.get_running_loop().create_future())
        line.append(place)
        metrics.IMAGES_WAITING.inc()
        try:
            await place.turn
        except asyncio.CancelledError:
            if place.turn.done() and not place.turn.cancelled() and place.turn.exception() is None:
                self._give_back(load)  # the turn had come in the moment of giving up
            raise
        finally:
            metrics.IMAGES_WAITING.dec()
            with contextlib.suppress(ValueError):  # it has left the queue, unless it gave up
                line.remove(place)
                self._admit()

    def _make_place(self, *lines: deque[_Waiter], begun: bool) -> None:
        """Refuse the newest image of a request that has none through; raises Overloaded if that is the one that asks.

        A request that has begun would be left half done, and the first to come would make room for the last.
        """
        places = sorted((place for line in lines for place in line if not place.begun), key=lambda place: place.number)
        if not begun or not places:
            raise self._full()
        newest = places[-1]
        (self._costly_line if newest.load.costly else self._cheap_line).remove(newest)
        if not newest.turn.done():
            newest.turn.set_exception(self._full())

    def _full(self) -> Overloaded:
        value = self._max_images_waiting
        return Overloaded(
            f"{self.images_waiting} images are already waiting, the maximum; try again later.",
            limit="max_images_waiting",
            value=value,
        )

    def _next(self) -> _Waiter | None:
        """The first image in the queue that does not wait for a decoder."""
        costly = self._costly_line[0] if self._costly_line else None
        if costly is not None and not self._may_decode(costly.load):
            costly = None
        cheap = self._cheap_line[0] if self._cheap_line else None
        if costly is None or cheap is None:
            return costly or cheap
        return min(costly, cheap, key=lambda place: place.number)

    def _fits(self, load: Load) -> bool:
        return self._images < self.max_images and self._bytes + load.nbytes <= self.max_bytes

    def _may_decode(self, load: Load) -> bool:
        """Whether a costly image may join those in flight: then it keeps a decoder busy, or soon would."""
        if not load.costly or not self._costly:
            return True
        nbytes = sum(each.nbytes for each in self._costly) + load.nbytes
        if nbytes > self.max_bytes * COSTLY_BYTES_SHARE or len(self._costly) >= self.max_images * COSTLY_SHARE:
            return False
        seconds = sum(each.decode_seconds for each in self._costly) + load.decode_seconds
        return len(self._costly) < self._decoders or seconds <= SECONDS_PER_DECODER * self._decoders

    def _take(self, load: Load) -> None:
        if load.costly:
            self._costly.append(load)
        self._images += 1
        self._bytes += load.nbytes
        metrics.IMAGES_IN_FLIGHT.inc()
        metrics.BYTES_IN_FLIGHT.inc(load.nbytes)

    def _give_back(self, load: Load) -> None:
        self._images -= 1
        metrics.IMAGES_IN_FLIGHT.dec()
        self._replace(load, _NOTHING)

    def _replace(self, before: Load, after: Load) -> None:
        """Have an image that is decoded take less than before."""
        if before.costly:
            self._costly.remove(before)
        self._bytes -= before.nbytes - after.nbytes
        metrics.BYTES_IN_FLIGHT.dec(before.nbytes - after.nbytes)
        self._admit()

    def _admit(self) -> None:
        while self.images_waiting and (place := self._next()) is not None and self._fits(place.load):
            (self._costly_line if place.load.costly else self._cheap_line).popleft()
            if not place.turn.done():
                self._take(place.load)
                place.turn.set_result(None)
