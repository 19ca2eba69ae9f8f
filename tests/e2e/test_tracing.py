"""One trace from the client through the gateway into Triton's models."""

import contextlib
import functools
import secrets
from pathlib import Path

import pytest

from gateway.triton.client import INFER
from gateway.triton.contract import CLASSIFIER, ENSEMBLE_MODEL, PREPROCESSOR
from gateway_local.runtime.base import TritonRuntime
from tests.otlp import PARENT, Collector, collecting
from tests.photos import photo, unlike_any
from tests.processes import Gateway, running_gateway, wait_for
from tests.tritons import running_triton

ATTEMPTS = 4
CALL = f"/{INFER}"
MODELS = {ENSEMBLE_MODEL, PREPROCESSOR, CLASSIFIER}
TRACING = ("mode=opentelemetry", "level=TIMESTAMPS", "rate=1", "opentelemetry,resource=service.name=triton")
TRACING += ("opentelemetry,bsp_schedule_delay=200",)
"""Triton sends a span of every request."""


def traced(gateway: Gateway, collector: Collector, images: int = 1) -> str:
    """The id of a request's trace that has arrived as a whole: an exporter may drop a span."""

    def is_whole(trace_id: str) -> bool:
        return {span.name for span in collector.of_trace(trace_id)} >= {"POST /predict", CALL, *MODELS}

    for _ in range(ATTEMPTS):
        trace_id = secrets.token_hex(16)
        files = [("f", ("c.jpg", unlike_any(photo("cat")))) for _ in range(images)]
        with gateway.client(headers={"traceparent": f"00-{trace_id}-{PARENT}-01"}) as http:
            assert http.post("/predict", files=files).json()["summary"] == {"ok": images, "failed": 0}
        with contextlib.suppress(AssertionError):
            wait_for(functools.partial(is_whole, trace_id), timeout_seconds=15)
            return trace_id
    raise AssertionError(f"none of {ATTEMPTS} traces was complete")


def descendants(collector: Collector, trace_id: str) -> dict[str, set[str]]:
    """The names of the spans of a trace → the names of their ancestors."""
    spans = {span.span_id: span for span in collector.of_trace(trace_id)}
    found: dict[str, set[str]] = {}
    for span in spans.values():
        ancestors, parent = set(), spans.get(span.parent_id)
        while parent is not None:
            ancestors.add(parent.name)
            parent = spans.get(parent.parent_id)
        found[span.name] = ancestors
    return found


def test_tritons_spans_join_the_clients_trace_through_the_gateway(
    runtime: TritonRuntime, light_repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        to_collector = f"opentelemetry,url={collector.url}/v1/traces"
        arguments = [f"--trace-config={option}" for option in (*TRACING, to_collector)]
        with (
            running_triton(runtime, light_repository, extra_arguments=arguments) as triton,
            running_gateway(tmp_path / "log", triton_url=triton.url) as gateway,
        ):
            trace_id, of_many = traced(gateway, collector), traced(gateway, collector, images=40)
            (event,) = [line for line in gateway.log.read_text().splitlines() if trace_id in line]
    assert '"event": "request"' in event
    ancestors = descendants(collector, trace_id)
    assert ancestors["POST /predict"] == set()
    assert ancestors[CALL] == {"POST /predict"}
    for model in MODELS:
        assert ancestors[model] >= {"POST /predict", CALL}
    spans = {span.name: span for span in collector.of_trace(trace_id)}
    assert spans["POST /predict"].parent_id == PARENT
    assert (spans["POST /predict"].service, spans[CLASSIFIER].service) == ("triton-image-gateway", "triton")
    assert len([span for span in collector.of_trace(of_many) if span.name == CALL]) >= 5
    assert spans["POST /predict"].started <= spans[CALL].started <= spans[CLASSIFIER].started <= spans[CALL].ended
