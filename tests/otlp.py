"""A small OTLP/HTTP collector, for the gateway's spans (protobuf) and Triton's (JSON)."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gateway.tracing import Headers
from tests.doubles.http import Asked, Reply, http_server

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
"""The trace and the span of a client."""
KINDS = {1: "internal", 2: "server", 3: "client"}


def place(flags: int, state: str = "") -> Headers:
    """The headers of a call that belong to the client's trace."""
    return {"traceparent": f"00-{TRACE}-{PARENT}-{flags:02x}"} | ({"tracestate": state} if state else {})


@dataclass(frozen=True)
class Exported:
    """A span as a collector sees it; times in nanoseconds."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    started: int
    ended: int
    attributes: dict[str, Any]
    failed: bool


@dataclass
class Collector:
    """The spans so far."""

    url: str = ""
    spans: list[Exported] = field(default_factory=list)

    def named(self, name: str) -> list[Exported]:
        return [span for span in self.spans if span.name == name]

    def of_trace(self, trace_id: str) -> list[Exported]:
        return [span for span in self.spans if span.trace_id == trace_id]


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port of this machine."""

    collector = Collector()

    def take(request: Asked) -> Reply:
        if request.path != "/v1/traces":
            return Reply(404)
        collector.spans += _read(request.body, request.headers["content-type"])
        return Reply(200)

    with http_server(take) as port:
        collector.url = f"http://127.0.0.1:{port}"
        yield collector


def _read(body: bytes, content_type: str) -> Iterator[Exported]:
    if content_type == "application/json":
        message = json.loads(body)
        resources, as_hex = message["resourceSpans"], str.lower
    else:
        request = ExportTraceServiceRequest.FromString(body)
        resources = MessageToDict(request, use_integers_for_enums=True)["resourceSpans"]
        as_hex = _base64_as_hex
    for resource in resources:
        service = _attributes(resource["resource"]).get("service.name", "")
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                yield Exported(
                    service=service,
                    name=span["name"],
                    kind=KINDS.get(span["kind"], str(span["kind"])),
                    trace_id=as_hex(span["traceId"]),
                    span_id=as_hex(span["spanId"]),
                    parent_id=as_hex(span.get("parentSpanId", "")),
                    started=int(span["startTimeUnixNano"]),
                    ended=int(span["endTimeUnixNano"]),
                    attributes=_attributes(span),
                    failed=span.get("status", {}).get("code") == 2,
                )


def _base64_as_hex(text: str) -> str:
    return base64.b64decode(text).hex()


def _attributes(holder: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for attribute in holder.get("attributes", []):
        ((kind, value),) = attribute["value"].items()
        found[attribute["key"]] = int(value) if kind == "intValue" else value
    return found
