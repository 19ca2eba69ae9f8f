"""Counts the images that a request has answered."""

from gateway import metrics
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Result
from gateway.limits.caller import ANYONE


def count(spec: RequestSpec, result: Result) -> None:
    """Count each image of a file in the statistics of the request, the metrics, and the account of the API key."""
    caller = spec.charges.caller
    for image in result.images:
        error, version = image.error, image.model_version
        spec.stats.count(error, version)
        if caller is not ANYONE:
            caller.count(error)
        # A name that a client made up must not become a label, so a model counts by name once it has answered.
        model = spec.model_name if version else ""
        metrics.series(metrics.IMAGES, "ok" if error is None else error.code, model, version or "").inc()
        if image.damaged:
            metrics.DAMAGED_IMAGES.inc()
        if error is None and (score := image.top_score) is not None:
            metrics.series(metrics.TOP_SCORE, model, version or "").observe(score)
