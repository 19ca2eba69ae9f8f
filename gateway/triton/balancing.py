"""Which Tritons a gateway uses, and which of them gets the next call."""

import hashlib
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

HALF_LIFE_SECONDS = 5.0
"""How fast what a Triton has shown is forgotten: a slow one gets another chance, and one that turns slow is noticed."""
IMAGES_EACH = 8
"""So many images in flight are enough to keep one Triton busy; a gateway that may have more uses more Tritons."""


class Load:
    """What one Triton has of this gateway's images and sequences, and how quickly it answered lately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.images = 0
        self.sequences = 0
        """Sequences of frames whose state it keeps."""
        self._clock = clock
        self._seconds: float | None = None
        self._at = 0.0

    def latency_seconds(self, usual: float) -> float:
        """Seconds of a call there; the older its last answer, the more it is taken to be like the `usual` of others."""
        if self._seconds is None:
            return usual
        weight: float = 0.5 ** ((self._clock() - self._at) / HALF_LIFE_SECONDS)
        return weight * self._seconds + (1 - weight) * usual

    @property
    def seconds(self) -> float | None:
        """Seconds of a call there, a moving average; None before the first."""
        return self._seconds

    def observe(self, seconds: float) -> None:
        """Note that a call was answered after some seconds."""
        now = self._clock()
        if self._seconds is None:
            self._seconds = seconds
        else:
            # Calls that come close together count less each, so that a burst does not wipe out what came before.
            weight = max(0.1, 1 - 0.5 ** ((now - self._at) / HALF_LIFE_SECONDS))
            self._seconds += weight * (seconds - self._seconds)
        self._at = now


class HasLoad(Protocol):
    """What has a load."""

    load: Load


T = TypeVar("T", bound=HasLoad)


def power_of_two_choice(places: Sequence[T], generator: random.Random) -> T:
    """Of two places taken at random the one where a call will wait less: images in flight × seconds of a call.

    Two choices are nearly as good as all of them, and gateways that know nothing of each other do not all pick the same
    place (Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, 1996).
    """
    if len(places) == 1:
        return places[0]
    known = [seconds for place in places if (seconds := place.load.seconds) is not None]
    usual = sum(known) / len(known) if known else 1.0
    first, second = generator.sample(places, 2)

    def cost(place: T) -> float:
        return (place.load.images + 1) * place.load.latency_seconds(usual)

    # A hair more is no more: equal places take turns by chance.
    return first if cost(first) <= 1.001 * cost(second) else second


def subset_size(aperture: int, max_images_in_flight: int) -> int:
    """How many Tritons one gateway process uses; 0 for all of them."""
    return max(aperture, -(-max_images_in_flight // IMAGES_EACH)) if aperture else 0


def rendezvous_order(addresses: Iterable[str], gateway: str) -> list[str]:
    """Addresses in a gateway's own order, the same each time (rendezvous hashing).

    Its first ones are its subset. One that leaves is replaced by the next in order, and no other changes; over many
    gateways the subsets cover all addresses evenly.
    """
    return sorted(addresses, key=lambda address: hashlib.blake2b(f"{gateway}|{address}".encode()).digest())
