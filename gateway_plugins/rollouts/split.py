"""Splits: the version that answers a request, by shares."""

import hashlib
import random
from collections.abc import Mapping

_HASH_RANGE = 2**64


def version_of(
    splits: Mapping[str, Mapping[str, int]], model_name: str, version: str | None, client: str
) -> tuple[str, bool]:
    """The version that answers, "" for the one in use, and whether the split has chosen it.

    `version` is the one that the client asks for, if any.
    """
    shares = splits.get(model_name) if version is None else None
    return (choose(shares, model_name, client), True) if shares is not None else (version or "", False)


def choose(shares: Mapping[str, int], model_name: str, client: str) -> str:
    """A version by its share of the requests: always the same for one client, random without a client ("").

    A client's position among the shares is a hash, so that every gateway chooses the same version, and a larger share
    moves only the clients that it gains.
    """
    if client:
        digest = hashlib.sha256(f"{model_name}\0{client}".encode()).digest()
        position = int.from_bytes(digest[:8], "big") / _HASH_RANGE
    else:
        position = random.random()  # noqa: S311  # no secret
    rest = position * sum(shares.values())
    for version, share in shares.items():
        rest -= share
        if rest < 0:
            return version
    return list(shares)[-1]  # only by rounding
