"""The gateway's metrics for Prometheus. Several workers share their values through PROMETHEUS_MULTIPROC_DIR.

Labels take few values: routes, statuses, error codes, and models that have responded; never text from clients.
docs/reference/metrics.md explains the use of each metric.
"""

import contextlib
import os
import platform
import re
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from gateway import __version__
from gateway.values.rollout import Rollout

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
M = TypeVar("M", Counter, Histogram)
_LIVE_GAUGES = re.compile(r"gauge_live[a-z]+_(\d+)\.db")

# The creation time of series is not used, and each series would get one.
disable_created_metrics()  # type: ignore[no-untyped-call]

BUILD_INFO = Gauge(
    "gateway_build_info",
    "1, labelled with the gateway's version and Python's.",
    ["version", "python"],
    multiprocess_mode="livemax",
)
BUILD_INFO.labels(__version__, platform.python_version()).set(1)

REQUESTS = Counter(
    "gateway_requests_total",
    "Requests answered, by route, HTTP status (499: the client left before) and the problem's code, if it was one.",
    ["route", "status", "code"],
)
STAGE_SECONDS = Histogram(
    "gateway_request_duration_seconds",
    "Time of a request with images in each stage: read, prepare, wait, infer; total is the whole request.",
    ["stage"],
    buckets=SECONDS,
)
LOOP_PAUSE_SECONDS = Gauge(
    "gateway_event_loop_pause_seconds",
    "Longest time in the last 15 s for which one task blocked the event loop.",
    multiprocess_mode="livemax",
)
CLIENTS_GONE = Counter("gateway_client_disconnects_total", "Requests whose client disconnected before the response.")
BYTES_RECEIVED = Counter("gateway_received_bytes_total", "Bytes of request bodies received.")

IMAGES = Counter(
    "gateway_images_total",
    "Images answered, by outcome (ok, or the error's code) and the model and version that answered, if one did.",
    ["outcome", "model", "version"],
)
DAMAGED_IMAGES = Counter(
    "gateway_damaged_images_total", "Images whose compressed data is damaged: classified with a warning, or refused."
)
TOP_SCORE = Histogram(
    "gateway_top_score",
    "Highest score in each image's answer, by the model and version that answered.",
    ["model", "version"],
    buckets=(0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1),
)
IMAGES_IN_FLIGHT = Gauge("gateway_images_in_flight", "Images on their way through Triton.", multiprocess_mode="livesum")
IMAGES_IN_FLIGHT_LIMIT = Gauge(
    "gateway_images_in_flight_limit", "Images that may be on their way at once.", multiprocess_mode="livesum"
)
IMAGES_WAITING = Gauge("gateway_images_waiting", "Images that wait for admission.", multiprocess_mode="livesum")
IMAGES_WAITING_LIMIT = Gauge(
    "gateway_images_waiting_limit", "Images that may wait before requests are refused.", multiprocess_mode="livesum"
)
BYTES_IN_FLIGHT = Gauge(
    "gateway_in_flight_bytes", "Bytes of the images on their way through Triton.", multiprocess_mode="livesum"
)
BYTES_IN_FLIGHT_LIMIT = Gauge(
    "gateway_in_flight_limit_bytes", "Bytes of images that may be on their way at once.", multiprocess_mode="livesum"
)
BYTES_WAITING = Gauge(
    "gateway_waiting_bytes",
    "Bytes of uploads that are being received or wait for admission.",
    multiprocess_mode="livesum",
)
BYTES_WAITING_LIMIT = Gauge(
    "gateway_waiting_limit_bytes",
    "Bytes of uploads that may be received and wait at once.",
    multiprocess_mode="livesum",
)

UPLOADS_DISPLACED = Counter(
    "gateway_uploads_displaced_total",
    "Uploads that were cancelled because the upload buffer was full and they were the slowest.",
)
ANSWER_BYTES = Gauge(
    "gateway_answer_bytes", "Bytes of responses that are being built or not read yet.", multiprocess_mode="livesum"
)
ANSWER_BYTES_LIMIT = Gauge(
    "gateway_answer_limit_bytes",
    "Bytes of responses that may be built and unread at once.",
    multiprocess_mode="livesum",
)
CONNECTIONS = Gauge("gateway_connections", "Open connections of clients.", multiprocess_mode="livesum")
CONNECTIONS_LIMIT = Gauge(
    "gateway_connections_limit", "Connections that may be open at once.", multiprocess_mode="livesum"
)
CONNECTIONS_CLOSED = Counter(
    "gateway_connections_closed_total",
    "Connections that the gateway closed: idle or slow (for a new one), refused, unread (the response was not read).",
    ["reason"],
)

DECODE_CPU_SECONDS = Histogram(
    "gateway_decode_cpu_seconds",
    "Processor time of one image that was decoded in the gateway.",
    buckets=SECONDS[:12],
)
DECODING_BYTES = Gauge(
    "gateway_decoding_bytes", "Bytes that the images in the decoders need.", multiprocess_mode="livesum"
)
DECODERS_LOST = Counter(
    "gateway_decoders_lost_total",
    "Decoder processes that ended while decoding an image: out of time, stuck, killed, or crashed.",
    ["reason"],
)

STREAMS = Gauge("gateway_streams", "Streams of frames that are open.", multiprocess_mode="livesum")
STREAMS_LIMIT = Gauge(
    "gateway_streams_limit", "Streams of frames that may be open at once.", multiprocess_mode="livesum"
)
STREAMS_STOPPED = Counter(
    "gateway_streams_stopped_total",
    "Streams that the gateway ended: idle (no frame), displaced (for another stream), key_removed.",
    ["reason"],
)
SEQUENCES_RESTARTED = Counter(
    "gateway_sequences_restarted_total",
    "Times that a stream's state was lost because a Triton or a model's process ended.",
)

CALL_SECONDS = Histogram(
    "gateway_triton_call_duration_seconds",
    "Time of one call to Triton with a batch of images, retries included.",
    buckets=SECONDS,
)
BATCH_IMAGES = Histogram(
    "gateway_batch_images", "Images in one call to Triton.", buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256)
)
RETRIES = Counter("gateway_retries_total", "Calls to Triton that were sent once more.")
TRITON_READY = Gauge(
    "gateway_triton_ready",
    "1 while the last probe, a real inference, succeeded at this Triton.",
    ["triton"],
    multiprocess_mode="livemin",
)
MODEL_READY = Gauge(
    "gateway_model_ready",
    "1 while probes of this model, real inferences, succeed at one Triton at least; by Triton's name for the model.",
    ["model"],
    multiprocess_mode="livemin",
)
MODEL_MISSING = Gauge(
    "gateway_model_missing",
    "1 while a model that this Triton should serve is not loaded there.",
    ["triton", "model"],
    multiprocess_mode="livemax",
)
VERSION_SHARE = Gauge(
    "gateway_version_share_ratio",
    "Share of a model's requests that a version answers, of those that name no version; for models with several.",
    ["model", "version"],
    multiprocess_mode="livemostrecent",
)
SHADOW_SHARE = Gauge(
    "gateway_version_shadow_ratio",
    "Share of a model's images that a shadow version classifies as well.",
    ["model", "version"],
    multiprocess_mode="livemostrecent",
)
ROLLOUT_SINCE = Gauge(
    "gateway_rollout_timestamp_seconds",
    "When the versions of a model that answer were last changed; changes() of it counts the changes.",
    ["model"],
    multiprocess_mode="livemostrecent",
)
PROBES = Counter("gateway_probes_total", "Inferences sent to check whether models respond.")
HEALINGS = Counter(
    "gateway_healings_total",
    "Reloads of models, by outcome: healed (the model responds again), failed (the reload failed), in vain (the reload "
    "succeeded, but the model still fails).",
    ["outcome"],
)
WATCH_FAULTS = Counter(
    "gateway_watch_faults_total",
    "Unexpected errors in the health checker, which continues; the log has the error.",
)
DNS_FAILURES = Counter(
    "gateway_dns_failures_total", "DNS lookups of Triton's name that failed; the previous addresses stay in use."
)

# Series that alerts use exist from the start: increase() misses the first count of a new series.
for _reason in ("idle", "refused", "slow", "unread"):
    CONNECTIONS_CLOSED.labels(_reason)
for _outcome in ("healed", "failed", "in vain"):
    HEALINGS.labels(_outcome)
for _reason in ("idle", "displaced", "key_removed"):
    STREAMS_STOPPED.labels(_reason)


@lru_cache(4_096)
def series(metric: M, *labels: str) -> M:
    """The series of a metric with these labels; `metric.labels` takes a lock and some 2 µs for each request."""
    return metric.labels(*labels)


def forget(metric: Gauge, *labels: str) -> None:
    """Remove a series of a gauge. In files that workers share it cannot be removed, and becomes NaN."""
    if SHARED_FOLDER in os.environ:
        metric.labels(*labels).set(float("nan"))
    else:
        with contextlib.suppress(KeyError):
            metric.remove(*labels)


def show_rollout(model: str, before: Rollout | None, rollout: Rollout | None) -> None:
    """Show which versions of a model answer, instead of `before`; None for a model that no longer has several."""
    for version in before.versions if before else ():
        forget(VERSION_SHARE, model, version)
        forget(SHADOW_SHARE, model, version)
    if rollout is None:
        forget(ROLLOUT_SINCE, model)
        return
    for version in rollout.shares:
        VERSION_SHARE.labels(model, version).set(rollout.share(version))
    for version, percent in rollout.shadow.items():
        SHADOW_SHARE.labels(model, version).set(percent / 100)
    ROLLOUT_SINCE.labels(model).set(rollout.since.timestamp() if rollout.since else 0.0)


def exposition() -> bytes:
    """The metrics of all workers in Prometheus' text format."""
    folder = os.environ.get(SHARED_FOLDER)
    if folder is None:
        return generate_latest()
    _forget_dead_workers(Path(folder))
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)


def reserve_space(folder: Path) -> None:
    """Allocate disk blocks for this worker's metric files; raises OSError if the disk is full.

    The files are mapped into memory and sparse at first: if the disk becomes full, a write to a hole would end the
    process with SIGBUS.
    """
    for path in folder.glob(f"*_{os.getpid()}.db"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _forget_dead_workers(folder: Path) -> None:
    """Remove the gauges of workers that were killed and could not remove them themselves."""
    for path in folder.iterdir():
        if (match := _LIVE_GAUGES.fullmatch(path.name)) and not _lives(int(match[1])):
            with contextlib.suppress(FileNotFoundError):  # another worker removes it at the same time
                mark_process_dead(int(match[1]), str(folder))  # type: ignore[no-untyped-call]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:  # no such process, or one of another user
        return False
    return True
