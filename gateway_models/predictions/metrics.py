"""Metrics of the prediction log and of drift."""

from prometheus_client import Counter, Gauge

PREDICTION_LOG_ROWS = Counter(
    "gateway_prediction_log_rows_total",
    "Rows of the prediction log, by outcome: written, or dropped because of queue_full, shutdown or fault "
    "(a bug, which the log has).",
    ["outcome"],
)
PREDICTION_LOG_FAILURES = Counter(
    "gateway_prediction_log_failures_total",
    "Failures of the prediction log that are retried: sink (a write failed), retention (old files were not deleted).",
    ["reason"],
)
PREDICTION_LOG_QUEUE_ROWS = Gauge(
    "gateway_prediction_log_queue_rows", "Rows that wait to be written to the log.", multiprocess_mode="livesum"
)
PREDICTION_LOG_QUEUE_BYTES = Gauge(
    "gateway_prediction_log_queue_bytes",
    "Bytes of the rows and images that wait to be written to the log.",
    multiprocess_mode="livesum",
)
DRIFT_IMAGES = Counter(
    "gateway_drift_images_total",
    "Images answered by a version with a stored reference, by property (score, entropy, class) and its bin; while "
    "predictions are logged.",
    ["model", "version", "property", "bin"],
)
DRIFT_REFERENCE = Gauge(
    "gateway_drift_reference_share",
    "The share of a bin in the stored reference; 0 for a bin that it lacks.",
    ["model", "version", "property", "bin"],
    multiprocess_mode="livemax",
)

# Series that alerts use exist from the start: increase() misses the first count of a new series.
for _outcome in ("written", "queue_full", "shutdown", "fault"):
    PREDICTION_LOG_ROWS.labels(_outcome)
for _reason in ("sink", "retention"):
    PREDICTION_LOG_FAILURES.labels(_reason)
