"""Which Tritons a gateway uses, and which of them gets the next call (power of two choices)."""

import hashlib
import random
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from gateway.triton.replica import TritonLoad

IMAGES_EACH = 8
"""Images in flight that keep one Triton busy; a gateway that may have more uses more Tritons."""


class HasLoad(Protocol):
    """Anything with a load, such as a replica."""

    load: TritonLoad


T = TypeVar("T", bound=HasLoad)


def power_of_two_choice(replicas: Sequence[T], generator: random.Random) -> T:
    """The cheaper of two random replicas; a replica's cost is images in flight × seconds of a call.

    Two choices are nearly as good as comparing all replicas, and independent gateways do not all choose the same one
    (Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, 1996).
    """
    if len(replicas) == 1:
        return replicas[0]
    known = [seconds for replica in replicas if (seconds := replica.load.seconds) is not None]
    usual = sum(known) / len(known) if known else 1.0
    first, second = generator.sample(replicas, 2)

    def cost(replica: T) -> float:
        return (replica.load.images + 1) * replica.load.latency_seconds(usual)

    # A tolerance of 0.1 %, so that the choice between equal replicas is random.
    return first if cost(first) <= 1.001 * cost(second) else second


def subset_size(aperture: int, max_images_in_flight: int) -> int:
    """How many Tritons one gateway process uses; 0 for all of them."""
    return max(aperture, -(-max_images_in_flight // IMAGES_EACH)) if aperture else 0


def rendezvous_order(addresses: Iterable[str], gateway: str) -> list[str]:
    """The addresses in the gateway's own stable order (rendezvous hashing).

    The first ones are its subset. An address that is removed is replaced by the next in order, and nothing else
    changes; over many gateways the subsets cover all addresses evenly.
    """
    return sorted(addresses, key=lambda address: hashlib.blake2b(f"{gateway}|{address}".encode()).digest())
