"""Drift in metrics: the distribution of a version's answers, compared with a reference that is stored with the model.

`gateway model drift --store` writes the reference into the parameters of the model's ensemble. From there it reaches
every gateway with the answers. Prometheus adds up the gateways and computes the population stability index.
"""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import structlog
from prometheus_client import Counter
from pydantic import TypeAdapter, ValidationError

from gateway.values.validation import first_fault
from gateway_models.predictions import metrics

log = structlog.get_logger("gateway")

CLASS, SCORE, ENTROPY, OTHER = "class", "score", "entropy", "other"
DECIMALS = 3
"""Decimals of scores and entropies that are compared."""
MOST_NAMES = 20
"""The most frequent names are compared each, and the others as one."""

STORED_IMAGES = 500
"""Images of a stored reference at least: with fewer, chance alone exceeds the alert's threshold."""
BOUNDS: Mapping[str, Sequence[float]] = {
    SCORE: (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999),
    ENTROPY: (0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6),
}
"""The upper bounds of the bins of each number, all but the last; in nats for the entropy."""


@dataclass(frozen=True, slots=True)
class LiveReference:
    """How the answers of a version were distributed: the share of each bin, and of the most frequent classes."""

    images: int
    shares: Mapping[str, Sequence[float]]
    """The share of each bin of SCORE and ENTROPY."""
    classes: Mapping[int, tuple[str, float]]
    """Label and share of the most frequent classes, by number; the others have the rest."""

    def text(self) -> str:
        """The reference as JSON, for the parameter of the ensemble."""
        return json.dumps(asdict(self), separators=(",", ":"))


_REFERENCE = TypeAdapter(LiveReference)


def read_reference(text: str) -> LiveReference:
    """The reference in a parameter; raises ValueError."""
    try:
        reference = _REFERENCE.validate_json(text)
    except ValidationError as exc:
        raise ValueError(first_fault(exc)) from exc
    if any(len(reference.shares.get(name, ())) != len(bounds) + 1 for name, bounds in BOUNDS.items()):
        raise ValueError("the bins belong to another release")
    return reference


def bin_names(bounds: Sequence[float]) -> list[str]:
    """The values of the label `bin` for a number."""
    return [*(f"up to {bound:g}" for bound in bounds), f"above {bounds[-1]:g}"]


class LiveDrift:
    """The metrics of one gateway process."""

    def __init__(self) -> None:
        self._followed: dict[tuple[str, str], tuple[str, _Series | None]] = {}
        """The text of each version's reference, and its series unless it cannot be read."""

    def follows(self, model: str, version: str, reference: str) -> bool:
        """Whether a version's answers are counted; shows its reference if that is new or has changed."""
        known = self._followed.get((model, version))
        if known is None and not reference:
            return False
        if known is None or known[0] != reference:
            known = self._follow(model, version, reference, None if known is None else known[1])
        return known[1] is not None

    def count(self, model: str, version: str, class_id: int, score: float, entropy: float) -> None:
        """Count an answer of a version that is followed."""
        series = self._followed[model, version][1]
        assert series is not None
        series.classes.get(class_id, series.other).inc()
        for name, value in ((SCORE, score), (ENTROPY, entropy)):
            series.numbers[name][bisect_left(BOUNDS[name], round(value, DECIMALS))].inc()

    def _follow(self, model: str, version: str, text: str, before: "_Series | None") -> "tuple[str, _Series | None]":
        for labels in before.labels if before is not None else ():
            metrics.DRIFT_REFERENCE.labels(*labels).set(0)  # series of shared files cannot be removed
        series: _Series | None = None
        if text:
            try:
                series = _Series(model, version, read_reference(text))
            except ValueError as exc:
                log.warning("drift_reference_unreadable", model=model, version=version, reason=str(exc))
        self._followed[model, version] = known = (text, series)
        return known


class _Series:
    """The series of a version. All exist from the start: a bin without images is part of the distribution."""

    def __init__(self, model: str, version: str, reference: LiveReference) -> None:
        self.labels: list[tuple[str, str, str, str]] = []

        def shown(name: str, bin_name: str, share: float) -> Counter:
            labels = (model, version, name, bin_name)
            self.labels.append(labels)
            metrics.DRIFT_REFERENCE.labels(*labels).set(share)
            return metrics.DRIFT_IMAGES.labels(*labels)

        self.numbers = {
            name: [
                shown(name, bin_name, share)
                for bin_name, share in zip(bin_names(bounds), reference.shares[name], strict=True)
            ]
            for name, bounds in BOUNDS.items()
        }
        self.classes = {number: shown(CLASS, label, share) for number, (label, share) in reference.classes.items()}
        self.other = shown(CLASS, OTHER, max(1e-6, 1 - sum(share for _, share in reference.classes.values())))
