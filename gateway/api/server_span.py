"""The span of an HTTP request, following OpenTelemetry's semantic conventions for HTTP servers.

Starlette's OpenTelemetry middleware is not used: it knows no route of endpoints that are called without Starlette's
routing, such as /predict's, begins spans for probes, too, and reports the status as `error.type` instead of the code.
"""

from collections.abc import Mapping
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Span, Tracer
from starlette.types import Scope

from gateway import tracing
from gateway.inference.request_stats import RequestStats
from gateway.tracing import Attribute

# Each call to Triton has a span of its own, so its stage needs none.
_STAGES = ("read", "prepare", "wait")


def begin(tracer: Tracer, scope: Scope, parent: Context, request_id: str) -> Span:
    """Begin the span of a request, with the attributes known before routing."""
    headers = dict(scope["headers"])
    attributes: dict[str, Attribute] = {
        "http.request.method": scope["method"],
        "url.scheme": scope["scheme"],
        "url.path": scope["path"],
        "network.protocol.version": scope["http_version"],
        "gateway.request_id": request_id,
    }
    if scope["query_string"]:
        attributes["url.query"] = scope["query_string"].decode("latin-1")
    if scope.get("client"):
        attributes["client.address"] = scope["client"][0]
    if scope.get("server"):
        address, port = scope["server"]
        attributes["server.address"] = address
        if port is not None:  # None for a Unix socket, whose address is its path
            attributes["server.port"] = port
    if b"user-agent" in headers:
        attributes["user_agent.original"] = headers[b"user-agent"].decode("latin-1")
    return tracing.begin(tracer, scope["method"], parent, attributes)


def finish(
    span: Span, scope: Scope, route: str | None, status: int, log_fields: Mapping[str, Any], stats: RequestStats
) -> None:
    """End the span; `route` is a template, None if no route matched. Client errors do not fail the span."""
    attributes: dict[str, Attribute] = {"http.request.body.size": stats.received_bytes}
    if log_fields.get("client_gone"):
        attributes["gateway.client_gone"] = True
    else:
        attributes["http.response.status_code"] = status
    if route is not None:
        attributes["http.route"] = route
    if "model" in log_fields:
        attributes["gateway.model.name"] = log_fields["model"]
        attributes["gateway.images.ok"], attributes["gateway.images.failed"] = stats.images_ok, stats.images_failed
    if stats.model_version:
        attributes["gateway.model.version"] = stats.model_version
    for name in _STAGES:
        if stage := stats.stages.get(name):
            tracing.stage(name, stage.began, stage.ended, stage.seconds)
    fault = log_fields.get("code", str(status)) if status >= 500 else None
    tracing.end(span, f"{scope['method']} {route}" if route else scope["method"], attributes, fault)
