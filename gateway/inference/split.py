"""Which version of a model answers, where a share of its requests goes to another one."""

import hashlib
import random
from collections.abc import Mapping

_HASH_RANGE = 2**64


def version_of(
    splits: Mapping[str, Mapping[str, int]], model_name: str, version: str | None, client: str
) -> tuple[str, bool]:
    """The version that answers, "" for the one in use, and whether it is a share of the model's split.

    `version` is the one that the client asks for, if any.
    """
    shares = splits.get(model_name) if version is None else None
    return (choose(shares, model_name, client), True) if shares is not None else (version or "", False)


def choose(shares: Mapping[str, int], model_name: str, client: str) -> str:
    """A version by its share of the requests: the same one for the same client each time, by chance for nobody ("").

    A client's place among the shares comes from a hash, so that every gateway finds the same one, and a larger share
    moves only those clients that it gains.
    """
    if client:
        digest = hashlib.sha256(f"{model_name}\0{client}".encode()).digest()
        place = int.from_bytes(digest[:8], "big") / _HASH_RANGE
    else:
        place = random.random()  # noqa: S311  # no secret
    rest = place * sum(shares.values())
    for version, share in shares.items():
        rest -= share
        if rest < 0:
            return version
    return list(shares)[-1]  # by rounding alone
