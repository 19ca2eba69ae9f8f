"""What the gateway counts, for Prometheus. Several workers share their numbers through PROMETHEUS_MULTIPROC_DIR."""

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

REQUESTS = Counter("gateway_requests_total", "Requests by route and HTTP status.", ["route", "status"])
IMAGES = Counter("gateway_images_total", "Images by outcome: ok, or the error's code.", ["outcome"])
BYTES_RECEIVED = Counter("gateway_received_bytes_total", "Bytes of images received.")
STAGE_SECONDS = Histogram(
    "gateway_request_duration_seconds",
    "Time of a /predict request by stage: read, prepare, wait, infer; total is the whole request.",
    ["stage"],
    buckets=_SECONDS,
)
BATCH_IMAGES = Histogram(
    "gateway_batch_images", "Images in one call to Triton.", buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256)
)
IMAGES_IN_FLIGHT = Gauge("gateway_images_in_flight", "Images on their way through Triton.", multiprocess_mode="livesum")
BYTES_IN_FLIGHT = Gauge(
    "gateway_in_flight_bytes", "Bytes of the images on their way through Triton.", multiprocess_mode="livesum"
)
IMAGES_WAITING = Gauge("gateway_images_waiting", "Images that wait to be let through.", multiprocess_mode="livesum")
TRITON_READY = Gauge(
    "gateway_triton_ready",
    "1 while a real inference has lately succeeded there.",
    ["triton"],
    multiprocess_mode="livemin",
)
RETRIES = Counter("gateway_retries_total", "Calls to Triton that were made once more after a lost connection.")
BYTES_WAITING = Gauge(
    "gateway_waiting_bytes", "Bytes of uploads that arrive or wait to be let through.", multiprocess_mode="livesum"
)
REFUSED = Counter("gateway_refused_requests_total", "Requests refused because too much was waiting.")
CLIENTS_GONE = Counter("gateway_client_disconnects_total", "Requests whose client went away before the answer.")


def exposition() -> bytes:
    """The metrics of all workers in Prometheus' text format."""
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return generate_latest()
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)
