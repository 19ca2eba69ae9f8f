"""The middleware of a request: log event, stages, metrics and span, id, security headers and CORS."""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any

import pytest
import structlog
from fastapi import APIRouter
from prometheus_client import REGISTRY
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gateway.app import create_app
from gateway.errors import AlreadyLogged, ModelNotFound, TritonUnreachable
from gateway.hooks import Plugin
from gateway.ingest.multipart import MAX_READ_AHEAD_BYTES
from tests.doubles.backend import CAT, PNG, StubBackend
from tests.otlp import TRACE, place
from tests.services import client_of, client_of_app
from tests.settings import Settings

Event = dict[str, Any]
TRACEPARENT = place(1)
STAGES = ["read_seconds", "prepare_seconds", "wait_seconds", "infer_seconds"]
TEXT = b"no image at all"
PART = b'--b\r\nContent-Disposition: form-data; name="f"; filename="a"\r\n\r\n' + PNG + b"\r\n"


def unreachable() -> TritonUnreachable:
    error = TritonUnreachable()
    error.__cause__ = OSError("Triton's own words")
    return error


def without_pauses(_logger, _name, event):
    """A machine that is busy elsewhere pauses the event loop, which is another matter."""
    if event["event"] == "loop_paused":
        raise structlog.DropEvent
    return event


@pytest.fixture
def events() -> Iterator[list[Event]]:
    with structlog.testing.capture_logs(
        processors=[structlog.contextvars.merge_contextvars, without_pauses]
    ) as captured:
        yield captured


def files(*contents: bytes) -> list[tuple[str, tuple[str, bytes]]]:
    return [("files", (f"{number}.png", content)) for number, content in enumerate(contents)]


def count(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_event_of_one_image_has_all_fields(client, events):
    client.post("/predict", files=files(PNG), headers={"X-Request-ID": "mine", **TRACEPARENT})
    (event,) = events
    fields = [name for name in event if name not in {"event", "log_level", "request_id", "trace_id"}]
    assert fields == [
        *("status", "method", "path", "model", "images_ok", "images_failed", "model_version", "received_bytes"),
        *("total_seconds", *STAGES),
    ]
    assert event["received_bytes"] > len(PNG)
    assert (event["event"], event["log_level"]) == ("request", "info")
    assert (event["status"], event["method"], event["path"]) == (200, "POST", "/predict")
    assert (event["model"], event["model_version"]) == ("ensemble_model", "1")
    assert (event["images_ok"], event["images_failed"]) == (1, 0)
    assert (event["request_id"], event["trace_id"]) == ("mine", TRACE)


NDJSON = {"Accept": "application/x-ndjson"}
REFUSED = {"unsupported_format": 2, "empty_file": 1}
CAUSE = "Triton's own words"


@pytest.mark.parametrize(
    ("answer", "contents", "headers", "fields"),
    [
        (lambda: CAT, [PNG, TEXT, b"", TEXT, PNG], {}, (200, "info", 2, 3, REFUSED, None, None, "1")),
        (lambda: CAT, [PNG, TEXT], NDJSON, (200, "info", 1, 1, {"unsupported_format": 1}, None, None, "1")),
        (unreachable, [PNG], {}, (503, "error", 0, 1, {"triton_unreachable": 1}, "triton_unreachable", CAUSE, None)),
        (
            lambda: chain([CAT], repeat(unreachable())),
            [PNG, PNG, PNG],
            {},
            (200, "warning", 1, 2, {"triton_unreachable": 2}, None, CAUSE, "1"),
        ),
    ],
    ids=["bad files", "lines", "no Triton", "a Triton that leaves"],
)
def test_event_counts_images_and_names_the_cause(events, answer, contents, headers, fields):
    with client_of(StubBackend(answer()), max_images_in_flight=1) as client:
        response = client.post("/predict", files=files(*contents), headers=headers)
    (event,) = events
    names = ("status", "log_level", "images_ok", "images_failed", "errors", "code", "cause", "model_version")
    assert tuple(event.get(name) for name in names) == fields
    assert response.status_code == fields[0]
    assert CAUSE not in response.text
    assert event.get("infer_seconds", 0) <= event["total_seconds"]
    assert "infer_seconds" in event or fields[0] != 200


def test_broken_result_stream_is_logged_with_its_cause(events):
    headers = {**NDJSON, "Content-Type": "multipart/form-data; boundary=b"}
    # One image may be in flight: the second waits for the first one's result, and what follows it is read later.
    with client_of(max_images_in_flight=1) as client:
        # So large that it is not read whole before its first file is classified.
        second = PART.replace(PNG, PNG + bytes(MAX_READ_AHEAD_BYTES))
        broken = PART + second + b"--b\r\nnonsense"
        answer = client.post("/predict", content=broken, headers=headers)
    (event,) = events
    *_, error, last = map(json.loads, answer.text.splitlines())
    assert (error["error"]["code"], last["summary"]) == ("invalid_multipart", {"ok": event["images_ok"], "failed": 0})
    assert (event["status"], event["code"]) == (200, "invalid_multipart")
    assert event["images_ok"] >= 1


class BrokenResponse(Response):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("boom")


class Broken(Plugin):
    def routers(self) -> Sequence[APIRouter]:
        router = APIRouter()
        router.add_api_route("/broken", lambda: BrokenResponse())
        return (router,)


def test_exception_amid_a_response_is_raised_as_already_logged(events):
    app = create_app(Settings(_env_file=None), StubBackend(), plugins=[Broken])
    with client_of_app(app) as client, pytest.raises(AlreadyLogged):
        client.ask("GET", "/broken")
    assert [event["event"] for event in events] == ["unexpected_error", "request"]


def test_disconnect_is_logged_with_the_answered_images(client, events):
    messages = iter([{"type": "http.request", "body": PNG[:10], "more_body": True}, {"type": "http.disconnect"}])
    sent = client.ask("POST", "/predict", [(b"content-type", b"image/png")], body=lambda _: next(messages))
    (event,) = events
    assert sent == []
    assert (event["status"], event["client_gone"]) == (499, True)
    assert (event["images_ok"], event["images_failed"], event["received_bytes"]) == (0, 0, 10)


def test_disconnect_ends_streamed_results(events):
    """While the body arrives: the images in flight are answered, and nothing stays in flight."""
    pieces = [{"type": "http.request", "body": PART, "more_body": True}] * 3
    messages: Iterator[Message] = chain(pieces, repeat({"type": "http.disconnect"}))
    headers = [(b"accept", b"application/x-ndjson"), (b"content-type", b"multipart/form-data; boundary=b")]
    with client_of(max_images_in_flight=1) as client:
        client.ask("POST", "/predict", headers, body=lambda _: next(messages))
        assert count("gateway_images_in_flight") == 0
    (event,) = events
    assert (event["client_gone"], event["images_failed"]) == (True, 0)
    assert event["images_ok"] in (1, 2)  # the second one may be in flight already


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_probes_and_assets_are_logged_at_debug_level(client, events, method):
    for path in ("/health/live", "/health/ready", "/metrics", "/assets/page.js", "/docs/assets/swagger-ui.css"):
        client.request(method, path)
    assert [(event["log_level"], event["method"]) for event in events] == [("debug", method)] * 5


def test_no_stage_is_longer_than_its_request_and_each_call_is_timed(events):
    seconds = 0.05  # duration of each call
    before = count("gateway_triton_call_duration_seconds_count")
    spent = count("gateway_triton_call_duration_seconds_sum")
    with client_of(StubBackend(seconds=seconds), max_images_in_flight=1) as client:
        header = client.post("/predict", files=files(*[PNG] * 8)).headers["Server-Timing"]
    milliseconds = {name: float(value) for name, value in re.findall(r"(\w+);dur=([\d.]+)", header)}
    assert list(milliseconds) == ["read", "prepare", "wait", "infer", "total"]
    assert milliseconds["infer"] >= 2 * seconds * 1e3
    assert milliseconds["infer"] <= milliseconds["total"]
    assert all(events[0][stage] <= events[0]["total_seconds"] for stage in STAGES)
    assert count("gateway_triton_call_duration_seconds_count") == before + 8
    assert count("gateway_triton_call_duration_seconds_sum") >= spent + 8 * seconds * 0.9


def test_requests_and_images_are_counted_by_what_came_of_them(client):
    series = {
        ("gateway_requests_total", ("route", "/predict"), ("status", "200"), ("code", "")): 1,
        ("gateway_requests_total", ("route", "/assets/{path:path}"), ("status", "200"), ("code", "")): 1,
        ("gateway_requests_total", ("route", "/predict"), ("status", "415"), ("code", "unsupported_media_type")): 1,
        ("gateway_images_total", ("outcome", "ok"), ("model", "ensemble_model"), ("version", "1")): 2,
        ("gateway_images_total", ("outcome", "unsupported_format"), ("model", ""), ("version", "")): 1,
    }

    def counts() -> list[float]:
        return [count(name, **dict(labels)) for name, *labels in series]

    before = counts()
    client.post("/predict", files=files(PNG, TEXT, PNG))
    client.post("/predict", content=b"x", headers={"Content-Type": "text/plain"})
    client.get("/assets/page.js")
    assert [now - then for now, then in zip(counts(), before, strict=True)] == list(series.values())


def test_client_made_values_never_become_labels():
    with client_of(StubBackend(ModelNotFound())) as client:
        client.post("/predict?model=zebra&version=4711", files=files(PNG))
        client.request("ZEBRA", "/zebra")
        client.get("/models/zebra")
        client.get("/zebra", headers={"X-Request-ID": "zebra"})
        exposed = client.get("/metrics").text.lower()
    assert "zebra" not in exposed
    # Within quotation marks: a sum of seconds may hold any digits.
    assert '"4711"' not in exposed


ORIGIN = "https://app.example"


RESPONSES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "result": ("POST", "/predict", {"files": files(PNG)}),
    "stream": ("POST", "/predict", {"files": files(PNG), "headers": NDJSON}),
    "error": ("GET", "/nothing", {}),
    "fault": ("GET", "/models", {}),
    "page": ("GET", "/", {}),
    "docs": ("GET", "/docs", {}),
    "script": ("GET", "/docs/assets/swagger-ui-bundle.js", {}),
    "metrics": ("GET", "/metrics", {}),
    "health": ("GET", "/health/live", {}),
}


@pytest.mark.parametrize("kind", RESPONSES)
def test_every_response_has_each_security_header_once(kind):
    """A response without an ETag is never stored."""
    method, path, options = RESPONSES[kind]
    with client_of(StubBackend(RuntimeError("boom") if kind == "fault" else CAT)) as client:
        answer = client.request(method, path, **options)
    assert answer.is_success == (kind not in {"error", "fault"})
    for name, value in {
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-resource-policy": "same-origin",
    }.items():
        assert answer.headers.get_list(name) == [value]
    (policy,) = answer.headers.get_list("content-security-policy")
    assert "frame-ancestors 'self'" in policy
    has_etag = kind in {"page", "docs", "script"}
    assert ("etag" in answer.headers) == has_etag
    if not has_etag:
        assert answer.headers["cache-control"] == "no-store"


def preflight(client, *, origin=ORIGIN, method="POST", headers="authorization,content-type,x-api-key,x-request-id"):
    asked = {"Origin": origin, "Access-Control-Request-Method": method, "Access-Control-Request-Headers": headers}
    return client.request("OPTIONS", "/predict", headers=asked)


def test_cors_is_disabled_by_default(client):
    answers = [client.get("/health/live", headers={"Origin": ORIGIN}), preflight(client)]
    assert not any(name.startswith("access-control") for answer in answers for name in answer.headers)
    assert answers[1].status_code == 405


def test_listed_origin_may_call_and_read_the_response():
    with client_of(cors_origins=(ORIGIN, "http://localhost:3000")) as client:
        allowed = preflight(client)
        answer = client.post("/predict", files=files(PNG), headers={"Origin": ORIGIN})
    assert allowed.status_code == 200
    for each in (allowed, answer):
        assert each.headers.get_list("x-content-type-options") == ["nosniff"]
        assert each.headers.get_list("cache-control") == ["no-store"]
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "Origin" in answer.headers["vary"]
    assert answer.headers["access-control-expose-headers"] == "*"
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    ("origins", "backend", "keys", "status"),
    [("*", None, False, 200), (ORIGIN, None, True, 401), (ORIGIN, RuntimeError("boom"), False, 500)],
    ids=["every origin", "no key", "fault"],
)
def test_preflight_needs_no_key_and_every_response_is_readable(tmp_path, origins, backend, keys, status):
    (tmp_path / "keys").write_text("")
    options = {"api_keys_file": tmp_path / "keys"} if keys else {}
    with client_of(StubBackend(backend or CAT), cors_origins=(origins,), **options) as client:
        answers = [preflight(client), client.get("/models", headers={"Origin": ORIGIN})]
    assert [answer.status_code for answer in answers] == [200, status]
    assert [answer.headers["access-control-allow-origin"] for answer in answers] == [origins] * 2


@pytest.mark.parametrize("origin", ["https://other.example", "https://app.example.evil", "null", "http://app.example"])
def test_unlisted_origin_and_unknown_method_are_refused(origin):
    with client_of(cors_origins=(ORIGIN,)) as client:
        refused = preflight(client, origin=origin)
        unknown = preflight(client, method="DELETE")
        answer = client.get("/health/live", headers={"Origin": origin})
    assert (refused.status_code, unknown.status_code) == (400, 400)
    assert "access-control-allow-origin" not in refused.headers
    assert "access-control-allow-origin" not in answer.headers


def request_id(client, *values: bytes) -> str:
    """The request id in the response, for raw X-Request-ID headers."""
    start, *_ = client.ask("GET", "/health/live", [(b"x-request-id", each) for each in values])
    (returned,) = [value for name, value in start["headers"] if name == b"x-request-id"]
    return returned.decode("ascii")


@pytest.mark.parametrize(
    ("given", "cleaned"),
    [
        (b"user@host:8080/job=1+2.3_4", "user@host:8080/job=1+2.3_4"),
        (b"a\r\nSet-Cookie: x=1", "aSet-Cookie:x=1"),
        (b"a\nb\x00c\x1b[31md\x7f", "abc31md"),
        ("naïve-ключ-😀".encode(), "nave--"),
        (b"\xff\xfe-latin", "-latin"),
        (b'"><script>alert(1)</script>', "scriptalert1/script"),
        (b"x" * 10_000, "x" * 128),
    ],
)
def test_unsafe_characters_of_a_request_id_are_removed(client, given, cleaned):
    """The first of several headers that is left counts."""
    assert request_id(client, given) == request_id(client, b"\x00", given, b"second") == cleaned


@pytest.mark.parametrize("given", [(), (b"",), (b"   ",), ("ключ".encode(),), (b"\r\n",)])
def test_request_without_a_usable_id_gets_a_new_one(client, given):
    first, second = request_id(client, *given), request_id(client, *given)
    assert re.fullmatch(r"[0-9a-f]{32}", first)
    assert first != second
