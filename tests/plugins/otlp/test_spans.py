"""The spans of requests and of their calls, as a collector gets them."""

import asyncio
import contextvars
import socket
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from opentelemetry.context import Context

from gateway.app import create_app
from gateway.errors import TritonUnreachable
from gateway.inference.request_stats import RequestStats
from gateway.tracing import NO_TRACE, call, join, link, with_spans
from gateway_plugins.otlp.exporter import Exporter
from gateway_plugins.otlp.plugin import TracingUnavailable
from gateway_plugins.otlp.spans import HttpSpan, TracerSpans
from tests.otlp import PARENT, TRACE, Collector, collecting, context, place
from tests.processes import wait_for
from tests.settings import Settings

SCOPE = {
    "method": "POST",
    "scheme": "http",
    "path": "/predict",
    "query_string": b"top_k=1",
    "http_version": "1.1",
    "headers": [],
}


def begin(exporter: Exporter, parent: Context) -> HttpSpan:
    """Begin the span of a request, as the middleware does."""
    spans = TracerSpans(exporter.tracer)
    span, own = spans.begin(SCOPE, parent, "an-id")
    join(with_spans(spans, own))
    return span


def end(span: HttpSpan, status: int = 200, *, route: str = "/predict", **log_fields: str) -> None:
    span.finish(route, status, log_fields, RequestStats())


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    join(NO_TRACE)
    yield
    join(NO_TRACE)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


def test_request_span_is_exported_with_stages_and_calls(collector):
    exporter = Exporter(collector.url)
    request = begin(exporter, context(place(1)))
    began = time.perf_counter()
    with call("Call", {"rpc.system.name": "grpc"}) as headers:
        pass
    unreachable = TritonUnreachable()
    unreachable.__cause__ = OSError("gone")
    with pytest.raises(TritonUnreachable), call("Call", {}):
        raise unreachable
    request.stage("read", began, began + 0.25, 0.125)
    end(request)
    exporter.close()

    (server,) = collector.named("POST /predict")
    assert (server.kind, server.trace_id, server.parent_id, server.failed) == ("server", TRACE, PARENT, False)
    assert server.attributes == {
        "gateway.request_id": "an-id",
        "http.request.body.size": 0,
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": "/predict",
        "network.protocol.version": "1.1",
        "url.path": "/predict",
        "url.query": "top_k=1",
        "url.scheme": "http",
    }
    assert server.service == "triton-image-gateway"
    (read,) = collector.named("read")
    assert (read.kind, read.parent_id, read.seconds) == ("internal", server.span_id, pytest.approx(0.25))
    assert read.attributes == {"gateway.stage.seconds": 0.125}
    fine, failed = collector.named("Call")
    assert {fine.parent_id, failed.parent_id} == {server.span_id}
    assert (fine.kind, fine.failed, fine.attributes) == ("client", False, {"rpc.system.name": "grpc"})
    assert headers == {"traceparent": f"00-{TRACE}-{fine.span_id}-01"}
    assert (failed.failed, failed.attributes) == (True, {"error.type": "triton_unreachable"})


def test_call_of_several_requests_is_linked_to_all_of_them(collector):
    """It is a part of the first request's trace."""
    exporter = Exporter(collector.url)
    spans, contexts = [], []
    for _ in range(2):
        join(NO_TRACE)
        spans.append(begin(exporter, NO_TRACE))
        contexts.append(contextvars.copy_context())
    contexts.append(contextvars.Context())  # a request without a span

    def shared_call() -> None:
        link(contexts[1:])
        with call("Call", {}):
            pass

    contexts[0].copy().run(shared_call)
    for span in spans:
        end(span)
    exporter.close()
    first, second = collector.named("POST /predict")
    (shared,) = collector.named("Call")
    assert (shared.parent_id, shared.links) == (first.span_id, (second.span_id,))


def test_request_without_a_trace_starts_one_and_an_unsampled_trace_is_propagated_alone(collector):
    exporter = Exporter(f"{collector.url}/v1/traces")  # the whole address is taken too
    end(begin(exporter, NO_TRACE), 500, code="internal_error")
    unsampled = begin(exporter, context(place(0, "a=1")))
    unsampled.stage("read", 0.0, 1.0, 1.0)
    with call("Call", {}) as headers:
        assert headers["traceparent"].startswith(f"00-{TRACE}-")
        assert headers["traceparent"].endswith("-00")
        assert headers["tracestate"] == "a=1"
    end(unsampled)
    exporter.close()
    (span,) = collector.spans
    assert len(span.trace_id) == 32
    assert (span.parent_id, span.failed, span.attributes["error.type"]) == ("", True, "internal_error")


def test_variables_of_the_sdk_apply(collector, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "pictures")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    exporter = Exporter(collector.url)
    end(begin(exporter, NO_TRACE), route="/mine")
    end(begin(exporter, context(place(1))), route="/theirs")
    exporter.close()
    assert [(span.name, span.service) for span in collector.spans] == [("POST /theirs", "pictures")]


def test_silent_collector_does_not_delay_shutdown(monkeypatch):
    monkeypatch.setattr("gateway_plugins.otlp.exporter.FLUSH_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        exporter = Exporter(f"http://127.0.0.1:{silent.getsockname()[1]}")
        end(begin(exporter, NO_TRACE))
        started = time.monotonic()
        exporter.close()
        # The SDK alone would wait for ten seconds.
        assert time.monotonic() - started < 8
    for thread in threading.enumerate():
        if thread.name == "otlp-flush":  # it must not run on beside other tests
            thread.join(60)
            assert not thread.is_alive()


async def test_concurrent_requests_keep_separate_traces(collector):
    exporter = Exporter(collector.url)

    async def request(number: int) -> tuple[str, str]:
        span = begin(exporter, context({"traceparent": f"00-{number:032x}-{PARENT}-01"}))
        await asyncio.sleep(0)
        with call("Call", {}) as headers:
            await asyncio.sleep(0)
        end(span)
        return headers["traceparent"].split("-")[1], f"{number:032x}"

    pairs = await asyncio.gather(*(asyncio.create_task(request(number)) for number in range(1, 50)))
    assert all(carried == own for carried, own in pairs)
    exporter.close()
    wait_for(lambda: len(collector.spans) == 98)
    servers = {span.trace_id: span.span_id for span in collector.named("POST /predict")}
    assert all(span.parent_id == servers[span.trace_id] for span in collector.named("Call"))


def test_start_without_the_sdk_names_the_package_to_install(monkeypatch):
    settings = Settings(_env_file=None, otlp_endpoint="http://127.0.0.1:4318")
    for missing in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
        with monkeypatch.context() as without:
            without.setitem(sys.modules, missing, None)
            with pytest.raises(TracingUnavailable, match=r"pip install .*\[otel\]'"):
                create_app(settings)


@pytest.mark.parametrize("endpoint", ["", "127.0.0.1:4318", "grpc://127.0.0.1:4317", "http://", "http://user@x"])
def test_invalid_endpoint_url_is_refused(endpoint):
    with pytest.raises(ValueError, match="OTLP/HTTP collector"):
        Settings(_env_file=None, otlp_endpoint=endpoint)
