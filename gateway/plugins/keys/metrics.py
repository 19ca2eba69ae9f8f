"""The metrics of API keys' quotas."""

from prometheus_client import Counter, Gauge

KEY_IMAGES = Counter(
    "gateway_key_images_total",
    "Images answered, by the name of the API key and outcome (ok, failed); while keys have quotas.",
    ["key", "outcome"],
)
KEY_IMAGES_IN_FLIGHT = Gauge(
    "gateway_key_images_in_flight",
    "Images on their way through Triton, by the name of the API key; while keys have quotas.",
    ["key"],
    multiprocess_mode="livesum",
)
KEY_REFUSALS = Counter(
    "gateway_key_refusals_total",
    "Requests and images refused by their API key's quota: rate, period (429), forbidden (a model or route, 403).",
    ["key", "reason"],
)
RATE_STORE_UP = Gauge(
    "gateway_rate_store_up",
    "1 while the shared store of rates answers, or none is set; 0 while each gateway counts by itself.",
    multiprocess_mode="livemin",
)
RATE_STORE_UP.set(1)
