"""How many images, and how many bytes of them, may be in flight and waiting at once."""

import asyncio
import contextlib
from collections import deque

from gateway import metrics
from gateway.errors import Overloaded


class Permit:
    """Leave for one image of `nbytes` to be in flight; released once, however often `release` is called."""

    __slots__ = ("_admission", "nbytes")

    def __init__(self, admission: "Admission", nbytes: int) -> None:
        self._admission: Admission | None = admission
        self.nbytes = nbytes

    def shrink(self, nbytes: int) -> None:
        """Give back what is no longer needed beyond `nbytes`."""
        if self._admission is not None and nbytes < self.nbytes:
            self._admission._give_back(self.nbytes - nbytes, images=0)
            self.nbytes = nbytes

    def release(self) -> None:
        """Make room for the next image that waits."""
        if self._admission is not None:
            admission, self._admission = self._admission, None
            admission._give_back(self.nbytes)


class Buffer:
    """The bytes of one request that have arrived and are not in flight yet; `clear` it at its end."""

    __slots__ = ("_admission", "_nbytes")

    def __init__(self, admission: "Admission") -> None:
        self._admission = admission
        self._nbytes = 0

    def grow(self, nbytes: int) -> None:
        """Count bytes that have arrived; raises Overloaded where the process would hold too many."""
        self._admission._hold(nbytes)
        self._nbytes += nbytes

    def clear(self) -> None:
        """Uncount them: they are in flight now, where the permit counts them, or were refused."""
        self._admission._hold(-self._nbytes)
        self._nbytes = 0


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
        max_bytes_waiting: int,
        max_wait_seconds: float,
    ) -> None:
        self._max_images = max_images
        self._max_bytes = max_bytes
        self._max_images_waiting = max_images_waiting
        self._max_bytes_waiting = max_bytes_waiting
        self.max_wait_seconds = max_wait_seconds
        self._images = 0
        self._bytes = 0
        self._held_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        metrics.IMAGES_IN_FLIGHT_LIMIT.set(max_images)
        metrics.BYTES_IN_FLIGHT_LIMIT.set(max_bytes)
        metrics.IMAGES_WAITING_LIMIT.set(max_images_waiting)
        metrics.BYTES_WAITING_LIMIT.set(max_bytes_waiting)

    def check(self) -> None:
        """Raise Overloaded if a request that comes now would find the queue full; costs nothing, not even its body."""
        if len(self._waiting) >= self._max_images_waiting:
            value = self._max_images_waiting
            raise Overloaded(
                f"{value} images wait already, as many as may; try again later.",
                limit="max_images_waiting",
                value=value,
            )

    def buffer(self) -> Buffer:
        """A count of what one request has sent and what is not in flight yet."""
        return Buffer(self)

    async def acquire(self, nbytes: int) -> Permit:
        """Wait until an image of `nbytes` fits; one larger than every limit fits when nothing else is in flight."""
        permit = self.try_acquire(nbytes)
        if permit is None:
            nbytes = min(nbytes, self._max_bytes)
            await self._wait(nbytes)
            permit = Permit(self, nbytes)
        return permit

    def try_acquire(self, nbytes: int) -> Permit | None:
        """A permit if an image of `nbytes` fits now and nobody waits before it, else None."""
        nbytes = min(nbytes, self._max_bytes)
        if self._waiting or not self._fits(nbytes):
            return None
        self._take(nbytes)
        return Permit(self, nbytes)

    async def _wait(self, nbytes: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = (nbytes, turn)
        self._waiting.append(place)
        metrics.IMAGES_WAITING.inc()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(nbytes)  # the turn had come in the moment of giving up
            else:
                with contextlib.suppress(ValueError):  # already passed over, if others were let through just now
                    self._waiting.remove(place)
                self._admit()
            raise
        finally:
            metrics.IMAGES_WAITING.dec()

    def _fits(self, nbytes: int) -> bool:
        return self._images < self._max_images and self._bytes + nbytes <= self._max_bytes

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
        while self._waiting and self._fits(self._waiting[0][0]):
            nbytes, turn = self._waiting.popleft()
            if not turn.cancelled():
                self._take(nbytes)
                turn.set_result(None)

    def _hold(self, nbytes: int) -> None:
        if nbytes > 0 and self._held_bytes + nbytes > self._max_bytes_waiting:
            value = self._max_bytes_waiting
            raise Overloaded(
                f"The uploads that wait would have more than {value} bytes; try again later.",
                limit="max_bytes_waiting",
                value=value,
            )
        self._held_bytes += nbytes
        metrics.BYTES_WAITING.inc(nbytes)
