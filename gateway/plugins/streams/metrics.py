"""The metrics of frames over WebSockets."""

from prometheus_client import Counter, Histogram

from gateway.metrics import SECONDS

STREAM_FRAMES = Counter(
    "gateway_stream_frames_total", "Frames of streams: answered, failed, or dropped for newer ones.", ["outcome"]
)
STREAM_SECONDS = Histogram(
    "gateway_stream_latency_seconds",
    "Time from the last byte of a stream's frame to its answer, its wait included.",
    buckets=SECONDS,
)

for _outcome in ("answered", "failed", "dropped"):
    STREAM_FRAMES.labels(_outcome)
