"""The spans of requests and of their calls, as a collector gets them."""

import socket
import sys
import threading
import time
from collections.abc import Iterator

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway.app import create_app
from gateway.inference.backend import Call
from gateway.inference.result import Row
from gateway.plugins.otlp.exporter import Exporter
from gateway.triton.client import INFER
from gateway.values.extras import ExtraMissing
from tests.doubles.backend import CAT, PNG, StubBackend
from tests.otlp import PARENT, TRACE, Collector, collecting
from tests.services import client_of
from tests.settings import Settings

TRACEPARENT = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


@pytest.fixture
def collector(monkeypatch) -> Iterator[Collector]:
    with collecting() as running:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.url)
        yield running


def predict(client, **headers: str) -> int:
    return client.post("/predict?top_k=1", files={"f": PNG}, headers=headers).status_code


def test_post_request_has_one_span_with_its_route_and_id(collector):
    """Neither the messages of a body nor GET requests have spans."""
    with client_of() as client:
        predict(client, **TRACEPARENT, **{"X-Request-ID": "mine", "Accept": "application/x-ndjson"})
        client.get("/models")
        client.post("/nothing")
        predict(client)
    assert {span.kind for span in collector.spans} == {"server"}
    server, other = sorted(collector.named("POST /predict"), key=lambda span: span.started)
    (nowhere,) = collector.named("POST /nothing")
    assert len(collector.spans) == 3
    assert (server.trace_id, server.parent_id, server.failed) == (TRACE, PARENT, False)
    assert (other.trace_id != TRACE, other.parent_id) == (True, "")
    assert server.service == "triton-image-gateway"
    expected = {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": "/predict",
        "url.path": "/predict",
        "url.query": "top_k=1",
        "gateway.request_id": "mine",
    }
    assert expected.items() <= server.attributes.items()
    assert (nowhere.attributes["http.response.status_code"], "http.route" in nowhere.attributes) == (404, False)


def test_call_of_a_request_has_a_span_whose_context_is_sent(collector):
    """Calls outside of requests, such as health probes, have none."""
    received: list[dict[str, str]] = []

    async def answer(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        received.append(dict(context.invocation_metadata()))
        return pb.ModelInferResponse().SerializeToString()

    handlers = grpc.method_handlers_generic_handler(
        "inference.GRPCInferenceService", {"ModelInfer": grpc.unary_unary_rpc_method_handler(answer)}
    )

    async def infer(call: Call) -> list[Row]:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((handlers,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await channel.unary_unary(f"/{INFER}")(b"", metadata=(("traceparent", "the request's"),))
        await server.stop(None)
        return [CAT] * len(call.images)

    with client_of(StubBackend(infer)) as client:
        assert predict(client, **TRACEPARENT, baggage="a=1") == 200
    (server,) = collector.named("POST /predict")
    (call,) = [span for span in collector.spans if span.kind == "client"]
    assert (call.name.lstrip("/"), call.trace_id, call.parent_id) == (INFER, TRACE, server.span_id)
    assert received[0]["traceparent"] == f"00-{TRACE}-{call.span_id}-01"
    assert "baggage" not in received[0]


def test_silent_collector_does_not_delay_shutdown(monkeypatch):
    monkeypatch.setattr("gateway.plugins.otlp.exporter.FLUSH_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        exporter = Exporter()
        exporter.provider.get_tracer("test").start_span("one").end()
        started = time.monotonic()
        exporter.close()
        # The SDK alone would wait for ten seconds.
        assert time.monotonic() - started < 8
    for thread in threading.enumerate():
        if thread.name == "otlp-flush":  # it must not run during other tests
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.parametrize("missing", ["opentelemetry.sdk.trace", "opentelemetry.instrumentation.grpc"])
def test_start_without_the_packages_names_the_extra(monkeypatch, missing):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    monkeypatch.delitem(sys.modules, "gateway.plugins.otlp.exporter", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ExtraMissing, match=r"pip install .*\[otel\]'"):
        create_app(Settings(_env_file=None))
