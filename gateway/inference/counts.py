"""Counts the images that a request has answered."""

from gateway import metrics
from gateway.errors import ServiceError
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Result
from gateway.limits.caller import ANYONE


def count(spec: RequestSpec, result: Result) -> None:
    """Count each image of a file in the statistics of the request, the metrics, and the account of the API key."""
    caller, stats = spec.caller, spec.stats
    for row in result.rows:
        error, version = row.error, row.model_version
        stats.model_version = stats.model_version or version or None
        if error is None:
            stats.images_ok += 1
        else:
            stats.errors[error.code] = stats.errors.get(error.code, 0) + 1
            if isinstance(error, ServiceError):
                stats.fault = stats.fault or error
        if caller is not ANYONE:
            caller.count(error)
        # A name that a client made up must not become a label, so a model counts by name once it has answered.
        model = spec.model_name if version else ""
        metrics.series(metrics.IMAGES, "ok" if error is None else error.code, model, version).inc()
        if row.damaged:
            metrics.DAMAGED_IMAGES.inc()
        if error is None and (score := row.top_score) is not None:
            metrics.series(metrics.TOP_SCORE, model, version).observe(score)
