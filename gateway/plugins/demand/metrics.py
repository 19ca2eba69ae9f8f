"""The metrics of models on demand."""

from prometheus_client import Counter, Histogram

from gateway.metrics import SECONDS

MODEL_LOOKUPS = Counter(
    "gateway_model_lookups_total",
    "Images whose model is loaded on demand, by outcome: loaded (a hit), not_loaded (it waits for a load), "
    "unloaded_meanwhile (another gateway has unloaded it since).",
    ["outcome"],
)
MODEL_LOAD_SECONDS = Histogram(
    "gateway_model_load_duration_seconds",
    "Time from the request for a model that is not loaded to its first good probe (cold start), by model.",
    ["model"],
    buckets=SECONDS,
)
MODEL_EVICTIONS = Counter(
    "gateway_model_evictions_total", "Models that were unloaded because others needed their memory."
)

for _outcome in ("loaded", "not_loaded", "unloaded_meanwhile"):
    MODEL_LOOKUPS.labels(_outcome)
