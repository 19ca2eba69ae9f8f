"""Which Triton gets the next call (power of two choices), or keeps a sequence (rendezvous hashing)."""

import hashlib
import random
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from gateway.triton.replica import TritonLoad

IMAGES_EACH = 8
"""Images in flight that keep one Triton busy."""


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


def rendezvous_order(addresses: Iterable[str], key: str) -> list[str]:
    """The addresses in a stable order of each key (rendezvous hashing): every gateway has the same first one.

    An address that is removed is replaced by the next in order; keys with another first address keep it.
    """
    return sorted(addresses, key=lambda address: hashlib.blake2b(f"{key}|{address}".encode()).digest())
