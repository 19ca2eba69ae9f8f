"""One trace from the client through the gateway into Triton's models."""

import contextlib
import functools
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.triton.contract import CLASSIFIER, ENSEMBLE_MODEL, PREPROCESSOR
from gateway.triton.grpc_endpoint import INFER
from gateway_local.runtime.base import TritonRuntime
from gateway_local.server import EmbeddedTriton
from tests.otlp import Collector, collecting
from tests.photos import photo, unlike_any
from tests.processes import Gateway, running_gateway, wait_for
from tests.tritons import running_triton

PARENT = "00f067aa0ba902b7"
ATTEMPTS = 4
MODELS = {ENSEMBLE_MODEL, PREPROCESSOR, CLASSIFIER}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture(scope="module")
def traced_triton(runtime: TritonRuntime, light_repository: Path, collector: Collector) -> Iterator[EmbeddedTriton]:
    """A Triton that sends a span of every request to the collector."""
    tracing = [
        "mode=opentelemetry",
        "level=TIMESTAMPS",
        "rate=1",
        f"opentelemetry,url={collector.url}/v1/traces",
        "opentelemetry,resource=service.name=triton",
        "opentelemetry,bsp_schedule_delay=200",
    ]
    arguments = [f"--trace-config={option}" for option in tracing]
    with running_triton(runtime, light_repository, extra_arguments=arguments) as server:
        yield server


@pytest.fixture(scope="module")
def traced_gateway(
    traced_triton: EmbeddedTriton, collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        log = tmp_path_factory.mktemp("tracing") / "log"
        with running_gateway(log, triton_url=traced_triton.url, otlp_endpoint=collector.url) as gateway:
            yield gateway


def ask(gateway: Gateway, trace_id: str) -> None:
    headers = {"traceparent": f"00-{trace_id}-{PARENT}-01"}
    with gateway.client(headers=headers) as http:
        assert http.post("/predict", files={"f": ("c.jpg", unlike_any(photo("cat")))}).status_code == 200


def ask_until(gateway: Gateway, condition: Callable[[str], bool]) -> str:
    """Send requests until the condition holds for a trace id, which is returned: an exporter may drop a span."""
    for _ in range(ATTEMPTS):
        trace_id = secrets.token_hex(16)
        ask(gateway, trace_id)
        with contextlib.suppress(AssertionError):
            wait_for(functools.partial(condition, trace_id), timeout_seconds=15)
            return trace_id
    raise AssertionError(f"none of {ATTEMPTS} traces was complete")


def names(collector: Collector, trace_id: str) -> set[str]:
    return {span.name for span in collector.of_trace(trace_id)}


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
    traced_gateway: Gateway, traced_triton: EmbeddedTriton, collector: Collector
):
    trace_id = ask_until(traced_gateway, lambda asked: names(collector, asked) >= {"POST /predict", INFER, *MODELS})
    ancestors = descendants(collector, trace_id)
    assert ancestors["POST /predict"] == set()
    assert ancestors[INFER] == {"POST /predict"}
    for model in MODELS:
        assert ancestors[model] >= {"POST /predict", INFER}
    spans = {span.name: span for span in collector.of_trace(trace_id)}
    assert spans["POST /predict"].parent_id == PARENT
    assert (spans["POST /predict"].service, spans[CLASSIFIER].service) == ("triton-image-gateway", "triton")
    attributes = spans[INFER].attributes
    assert f"{attributes['server.address']}:{attributes['server.port']}" == traced_triton.url
    assert attributes["gateway.images"] == 1
    assert spans["POST /predict"].started <= spans[INFER].started <= spans[CLASSIFIER].started <= spans[INFER].ended
    (event,) = [line for line in traced_gateway.log.read_text().splitlines() if trace_id in line]
    assert '"event": "request"' in event


def test_every_call_of_a_bulk_request_is_a_span_of_its_own(traced_gateway: Gateway, collector: Collector):
    trace_id = "5bf92f3577b34da6a3ce929d0e0e4736"
    files = [("f", (f"{number}.jpg", unlike_any(photo("cat")))) for number in range(40)]
    with traced_gateway.client(headers={"traceparent": f"00-{trace_id}-{PARENT}-01"}) as http:
        assert http.post("/predict", files=files).json()["summary"] == {"ok": 40, "failed": 0}
    wait_for(lambda: any(span.name == "POST /predict" for span in collector.of_trace(trace_id)))
    calls = [span for span in collector.of_trace(trace_id) if span.name == INFER]
    assert len(calls) >= 5
    assert sum(span.attributes["gateway.images"] for span in calls) == 40


def test_without_an_endpoint_tritons_spans_still_join_the_clients_trace(
    traced_triton: EmbeddedTriton, collector: Collector, tmp_path: Path
):
    with running_gateway(tmp_path / "log", triton_url=traced_triton.url) as gateway:
        trace_id = ask_until(gateway, lambda asked: names(collector, asked) >= MODELS)
        requests = [line for line in gateway.log.read_text().splitlines() if '"event": "request"' in line]
    assert trace_id in requests[-1]
    assert {span.service for span in collector.of_trace(trace_id)} == {"triton"}
