"""The metrics of models on demand."""

from prometheus_client import Counter, Gauge, Histogram

from gateway.metrics import SECONDS

MODELS_LOADED = Gauge(
    "gateway_models_loaded",
    "Models that a Triton has loaded, while models are loaded on demand.",
    ["triton"],
    multiprocess_mode="livemax",
)
MODELS_MEMORY = Gauge(
    "gateway_models_memory_bytes",
    "Host memory of those models, as recorded when they were added, at each Triton.",
    ["triton"],
    multiprocess_mode="livemax",
)
MODEL_LOOKUPS = Counter(
    "gateway_model_lookups_total",
    "Images whose model is loaded on demand, by outcome: loaded (a hit), not_loaded (it waits for a load), "
    "unloaded_meanwhile (another gateway has unloaded it since).",
    ["outcome"],
)
MODEL_LOADS = Counter(
    "gateway_model_loads_total",
    "Loads of models on demand, by outcome: requested, failed.",
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
for _outcome in ("requested", "failed"):
    MODEL_LOADS.labels(_outcome)
