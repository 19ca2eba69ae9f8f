"""Security headers, CORS and request ids, on every kind of answer."""

import re

import pytest

from tests.doubles.backend import CAT, PNG, StubBackend
from tests.services import client_of

ORIGIN = "https://app.example"
FILE = {"files": ("cat.png", PNG)}


@pytest.fixture(params=["result", "error", "fault", "page", "docs", "script", "metrics", "health", "stream"])
def answer(request):
    fault = RuntimeError("boom") if request.param == "fault" else None
    with client_of(StubBackend(fault)) as client:
        yield {
            "result": lambda: client.post("/predict", files=FILE),
            "stream": lambda: client.post("/predict", files=FILE, headers={"Accept": "application/x-ndjson"}),
            "error": lambda: client.get("/nothing"),
            "fault": lambda: client.get("/models"),
            "page": lambda: client.get("/"),
            "docs": lambda: client.get("/docs"),
            "script": lambda: client.get("/docs/assets/swagger-ui-bundle.js"),
            "metrics": lambda: client.get("/metrics"),
            "health": lambda: client.get("/health/live"),
        }[request.param]()


def test_every_response_has_each_security_header_once(answer, request):
    """A response without an ETag is never stored."""
    for name, value in {
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-resource-policy": "same-origin",
    }.items():
        assert answer.headers.get_list(name) == [value]
    (policy,) = answer.headers.get_list("content-security-policy")
    assert "frame-ancestors 'self'" in policy
    has_etag = request.node.callspec.params["answer"] in {"page", "docs", "script"}
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
        answer = client.post("/predict", files=FILE, headers={"Origin": ORIGIN})
    assert allowed.status_code == 200
    for each in (allowed, answer):
        assert each.headers.get_list("x-content-type-options") == ["nosniff"]
        assert each.headers.get_list("cache-control") == ["no-store"]
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "Origin" in answer.headers["vary"]
    exposed = set(answer.headers["access-control-expose-headers"].lower().split(", "))
    assert exposed >= {"x-request-id", "server-timing", "retry-after", "ratelimit", "ratelimit-policy"}
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("origin", ["https://other.example", "https://app.example.evil", "null", "http://app.example"])
def test_unlisted_origin_and_unknown_method_or_header_are_refused(origin):
    with client_of(cors_origins=(ORIGIN,)) as client:
        refused = preflight(client, origin=origin)
        unknown = [preflight(client, method="DELETE"), preflight(client, headers="x-anything")]
        answer = client.get("/health/live", headers={"Origin": origin})
    assert [each.status_code for each in (refused, *unknown)] == [400] * 3
    assert "access-control-allow-origin" not in refused.headers
    assert "access-control-allow-origin" not in answer.headers


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


def request_id(client, *values: bytes) -> str:
    """The request id in the response, for raw X-Request-ID headers."""
    start, *_ = client.ask("GET", "/health/live", [(b"x-request-id", each) for each in values])
    (returned,) = [value for name, value in start["headers"] if name == b"x-request-id"]
    return returned.decode("ascii")


@pytest.mark.parametrize(
    ("given", "cleaned"),
    [
        (b"abc-123", "abc-123"),
        (b"0af7651916cd43dd8448eb211c80319c", "0af7651916cd43dd8448eb211c80319c"),
        (b"user@host:8080/job=1+2.3_4", "user@host:8080/job=1+2.3_4"),
        (b"a\r\nSet-Cookie: x=1", "aSet-Cookie:x=1"),
        (b"a\nb\x00c\x1b[31md\x7f", "abc31md"),
        ("naïve-ключ-😀".encode(), "nave--"),
        (b"\xff\xfe-latin", "-latin"),
        (b'"><script>alert(1)</script>', "scriptalert1/script"),
        (b'{"a": "b"}', "a:b"),
        (b"a b\tc", "abc"),
        (b"x" * 10_000, "x" * 128),
        (b"\r\n" * 5_000 + b"x", "x"),
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
