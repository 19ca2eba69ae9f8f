"""Metrics of images by URL."""

from prometheus_client import Counter, Gauge, Histogram

from gateway.metrics import SECONDS

FETCHES = Gauge("gateway_fetches", "Images that are fetched by URL at this moment.", multiprocess_mode="livesum")
FETCHES_LIMIT = Gauge(
    "gateway_fetches_limit", "Images that may be fetched by URL at once.", multiprocess_mode="livesum"
)
FETCHED_BYTES = Counter("gateway_fetched_bytes_total", "Bytes of images received from URLs.")
FETCH_SECONDS = Histogram(
    "gateway_fetch_duration_seconds",
    "Time to fetch one image by URL, its redirects included, for any outcome; `gateway_images_total` counts outcomes.",
    buckets=SECONDS,
)
