"""Malformed input of a client is a 4xx, wherever it is and whichever library raises the error."""

import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.plugins.keys.key_file import add_key
from tests.doubles.backend import PNG, StubBackend, with_vector
from tests.keys import remove_key
from tests.services import Client, client_of

IMAGE = b64encode(PNG).decode()
INFER = "/v2/models/ensemble_model/infer"
JSON = {"content-type": "application/json"}
IMAGE_TYPE = {"content-type": "image/png"}
ODD = [
    b"[",
    b"http://[::1",
    b"\xff\xfe",
    b"",
    b"\x01",
    b"x" * 5_000,
    b"9" * 5_000,
    b"\xed\xa0\x80",
    b'a;b="',
    b"-1",
    b"NaN",
]
HEADERS = [
    *("host", "origin", "traceparent", "tracestate", "authorization", "x-api-key", "content-type", "content-encoding"),
    *("accept", "x-request-id", "x-client-id", "inference-header-content-length", "if-none-match", "user-agent"),
    *("access-control-request-method", "access-control-request-headers", "range", "cookie", "forwarded"),
]


@pytest.fixture(scope="module")
def key_file(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys"


@pytest.fixture(scope="module")
def key(key_file) -> str:
    return add_key(key_file, "one")


@pytest.fixture(scope="module")
def client(key_file, key) -> Iterator[Client]:
    """A client of a service with API keys; the tests send `key`."""
    with client_of(StubBackend(with_vector), api_keys_file=key_file, cors_origins="https://app.example") as client:
        yield client


def status(client: Client, key: str, method: str, path: str, **headers: bytes) -> int:
    """The status of a request; adds an API key unless the headers have one."""
    known = {"content-type": b"image/png", "x-api-key": key.encode(), **headers}
    fields = [(name.encode(), value) for name, value in known.items()]
    return client.request(method, path, headers=fields, content=PNG).status_code


@pytest.mark.parametrize("name", HEADERS)
def test_odd_header_never_causes_a_server_error(client, key, name):
    requests = [("POST", "/predict"), ("POST", INFER), ("POST", "/health/live"), ("GET", "/nowhere"), ("OPTIONS", "/x")]
    for value in ODD:
        for method, path in requests:
            assert status(client, key, method, path, **{name: value}) < 500, (method, path, value)


@pytest.mark.parametrize("name", ["%00", "%FF", "%ED%A0%80", "é", "%", "x" * 5_000, "..", "a%0Ab"], ids=ascii)
def test_odd_name_in_a_path_never_causes_a_server_error(client, key, name):
    paths = ["/models/{}", "/v2/models/{}", "/v2/models/{}/ready", "/v2/models/m/versions/{}", "/{}", "/assets/{}"]
    for path in paths:
        assert status(client, key, "GET", path.format(name)) < 500, path
    assert status(client, key, "POST", f"/v2/models/{name}/infer") < 500


def post(client: Client, key: str, path: str, body: str, headers: dict[str, str]) -> tuple[int, str]:
    answer = client.post(path, content=body.encode(), headers={**headers, "X-API-Key": key})
    content = answer.json()
    return answer.status_code, content.get("detail") or content.get("error") or ""


@pytest.mark.parametrize("text", [r"\ud800", r"\udfff", r"\udc00\ud800", r"a\ud83d", r"\ud800\ud800", r"\uDBFF\u0041"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/predict", '{"images": [{"b64": "IMAGE", "filename": "%s"}]}'),
        ("/predict", '{"images": [{"b64": "IMAGE", "%s": 1}]}'),
        ("/embed", '{"images": [{"b64": "IMAGE", "%s": 1}]}'),
        ("/predict", '{"%s": [{"b64": "IMAGE"}]}'),
        ("/predict", '{"inputs": "IMAGE", "parameters": {"%s": 1}}'),
        (INFER, '{"id": "%s", "inputs": [TENSOR]}'),
        (INFER, '{"%s": 1, "inputs": [TENSOR]}'),
        ("/v2/repository/index", '{"%s": 1}'),
    ],
)
def test_lone_surrogate_in_any_body_is_refused(client, key, path, body, text):
    """JSON escapes that stand for no character: RFC 8259, section 8.2."""
    tensor = '{"name": "IMAGE", "shape": [1], "datatype": "BYTES", "data": ["IMAGE"]}'
    whole = body.replace("TENSOR", tensor).replace('"IMAGE"}', f'"{IMAGE}"}}')
    code, detail = post(client, key, path, whole % text, JSON)
    assert code == 400
    assert "escape" in detail


def _infer(microseconds: object) -> str:
    tensor = {"name": "IMAGE", "shape": [1], "datatype": "BYTES", "data": [IMAGE]}
    return json.dumps({"parameters": {"timeout": microseconds}, "inputs": [tensor]})


FORM = (
    '--b\r\nContent-Disposition: form-data; name="timeout"\r\n\r\n{}\r\n'
    '--b\r\nContent-Disposition: form-data; name="f"; filename="x"\r\n\r\nx\r\n--b--\r\n'
)
MULTIPART = {"content-type": "multipart/form-data; boundary=b"}


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        ("/predict", lambda seconds: FORM.format(seconds), MULTIPART),
        ("/embed", lambda seconds: FORM.format(seconds), MULTIPART),
        (INFER, lambda seconds: _infer(round(seconds * 1e6)), JSON),
        ("/predict?timeout={}", lambda seconds: "x", IMAGE_TYPE),
        ("/embed?timeout={}", lambda seconds: "x", IMAGE_TYPE),
    ],
)
def test_timeout_may_be_one_millisecond(client, key, path, body, headers):
    """At the limit the request is taken, though it may not be answered in time."""
    code, detail = post(client, key, path.format(0.000999), body(0.000999), headers)
    assert code == 422
    assert "at least 0.001 s" in detail
    assert "at least 0.001 s" not in post(client, key, path.format(0.001), body(0.001), headers)[1]


@pytest.mark.parametrize("name", ["timeout", "top_k", "threshold"])
def test_odd_number_never_causes_a_server_error(client, key, name):
    for path in ("/predict", "/embed"):
        for value in ("-0", "1e-400", "0x1", "1_0", ""):
            assert status(client, key, "POST", f"{path}?{name}={value}") in {200, 422}, value
        for value in ("1e999", "inf", "-inf", "nan", "1" + "0" * 400):
            assert status(client, key, "POST", f"{path}?{name}={value}") == 422, value


def test_upload_completes_after_its_key_is_removed(tmp_path):
    path = tmp_path / "keys"
    key = add_key(path, "one")

    async def body():
        yield PNG[:20]
        remove_key(path, "one")
        yield PNG[20:]

    with client_of(StubBackend(with_vector), api_keys_file=path) as client:
        headers = {**IMAGE_TYPE, "X-API-Key": key}
        assert client.post("/predict", content=body(), headers=headers).status_code == 200
        assert client.post("/predict", content=PNG, headers=headers).status_code == 401
