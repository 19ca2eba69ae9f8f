"""Which models to unload for another one: a function of what a Triton has loaded, and for whom."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gateway_plugins.demand.memory import HOST, Amounts


def total(parts: Iterable[Amounts]) -> dict[str, int]:
    """The sum of some amounts."""
    found: dict[str, int] = {}
    for part in parts:
        for place, nbytes in part.items():
            found[place] = found.get(place, 0) + nbytes
    return found


@dataclass(frozen=True, slots=True)
class Budget:
    """The most memory of a Triton's models; 0 bytes of a GPU are no limit."""

    host_bytes: int
    gpu_bytes: int = 0

    def exceeded(self, amounts: Amounts) -> set[str]:
        """Where some amounts are above the budget."""
        return {place for place, nbytes in amounts.items() if nbytes > self.most(place)}

    def most(self, place: str) -> float:
        """The limit of host memory or of a GPU."""
        return self.host_bytes if place == HOST else self.gpu_bytes or math.inf


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that a Triton has loaded, with all its versions and the steps that it alone needs."""

    name: str
    amounts: Amounts
    stays: bool
    """Whether it is never unloaded, or not now: it is loading, or was loaded a moment ago."""
    busy: bool
    """Whether it has images in flight."""
    idle_seconds: float
    """Since its last image, or since it was loaded."""
    clients: frozenset[str] = field(default=frozenset())
    """The clients that have used it lately; of none if it is for everybody, such as the default model."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Which models may be unloaded for another one."""

    least_idle_seconds: float = 0.0
    """Only models that have been idle for at least this time."""
    busy_too: bool = False
    """Also those with images in flight, which are finished first."""
    client: str = ""
    """The client that requests the other one."""


ANY_IDLE = Claim()


def to_unload(
    loaded: Sequence[LoadedModel], needed: Amounts, budget: Budget, claim: Claim = ANY_IDLE
) -> list[str] | None:
    """The models to unload so that `needed` fits into the budget: those that were used least recently.

    None if those that may be unloaded do not suffice. A model that frees nothing where memory is short stays. While the
    claim's client has a model of its own, it gives that one up before it takes a model from a client with less memory.
    """
    chosen, fits = _choose(loaded, needed, budget, claim)
    return chosen if fits else None


def excess(loaded: Sequence[LoadedModel], budget: Budget) -> list[str]:
    """The models to unload since the budget is exceeded; it may still be, by models that stay or are busy."""
    chosen, _ = _choose(loaded, {}, budget, ANY_IDLE)
    return chosen


def _choose(loaded: Sequence[LoadedModel], needed: Amounts, budget: Budget, claim: Claim) -> tuple[list[str], bool]:
    kept = total([needed, *(model.amounts for model in loaded)])
    remaining = sorted(loaded, key=lambda model: (model.busy, -model.idle_seconds))
    chosen: list[str] = []
    # Each choice changes what the claim's client has, and so which models it may take.
    while short := budget.exceeded(kept):
        candidates = (model for model in remaining if _may_go(model, short, claim))
        free = (
            model
            for model in candidates
            if not any(_is_protected(model, remaining, needed, claim.client, place) for place in short)
        )
        if (model := next(free, None)) is None:
            break
        chosen.append(model.name)
        remaining.remove(model)
        kept = {place: nbytes - model.amounts.get(place, 0) for place, nbytes in kept.items()}
    return chosen, not budget.exceeded(kept)


def _may_go(model: LoadedModel, short: Iterable[str], claim: Claim) -> bool:
    helps = any(model.amounts.get(place, 0) > 0 for place in short)
    idle = (claim.busy_too or not model.busy) and model.idle_seconds >= claim.least_idle_seconds
    return helps and idle and not model.stays


def _is_protected(model: LoadedModel, loaded: Sequence[LoadedModel], needed: Amounts, client: str, place: str) -> bool:
    """Whether a model is in use by a client that has less memory in a place than `client` would have, with its own."""
    others = model.clients - {client}
    if not client or not others or all(each.clients != {client} for each in loaded):
        return False
    own = needed.get(place, 0) + _held(client, loaded, place)
    return any(_held(other, loaded, place) < own for other in others)


def _held(client: str, loaded: Sequence[LoadedModel], place: str) -> int:
    return sum(model.amounts.get(place, 0) for model in loaded if client in model.clients)
