"""Metrics of recovery."""

from prometheus_client import Counter

HEALINGS = Counter(
    "gateway_healings_total",
    "Reloads of models, by outcome: healed (the model responds again), failed (the reload failed), in vain (the reload "
    "succeeded, but the model still fails).",
    ["outcome"],
)

# Series that alerts use exist from the start: increase() misses the first count of a new series.
for _outcome in ("healed", "failed", "in vain"):
    HEALINGS.labels(_outcome)
