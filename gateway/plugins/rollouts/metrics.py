"""Metrics of shadow versions."""

from prometheus_client import Counter, Histogram

SHADOW_IMAGES = Counter(
    "gateway_shadow_images_total",
    "Images for a shadow version, by outcome: the same top-1 class, a different one, skipped, or the error's code.",
    ["outcome", "model", "version"],
)
SHADOW_DIFFERENCE = Histogram(
    "gateway_shadow_difference_score",
    "Largest difference between a shadow version's scores and those in an image's answer.",
    ["model", "version"],
    buckets=(1e-6, 1e-5, 1e-4, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.75, 1),
)
