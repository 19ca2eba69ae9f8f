"""API keys: which requests need one, the errors without one, and that no key is ever shown."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.api.route_table import Access
from gateway.app import create_app
from gateway.errors import UserError
from gateway.plugins.keys.key_file import KeysError, add_key
from tests.doubles.backend import PNG, StubBackend
from tests.gateway.api.in_child import logged
from tests.services import ROUTES, Client, client_of
from tests.settings import Settings

OPEN = [
    *("/", "/metrics", "/docs", "/openapi.json", "/client/"),
    *("/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready"),
    *("/assets/page.js", "/docs/assets/swagger-ui.css"),
]
GUARDED = [
    *("/models", "/models/ensemble_model", "/predict", "/nothing"),
    *("/docsx", "/assets", "/healthy", "/predict/", "/health"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
def key(path: Path) -> str:
    return add_key(path, "mobile")


@pytest.fixture
def client(path: Path, key: str) -> Iterator[Client]:
    with client_of(api_keys_file=path) as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_every_path_but_probes_and_pages_needs_a_key(client):
    """Unknown paths as well; none without the setting."""
    open_paths = {route.path for route in ROUTES if route.traits.access is Access.OPEN}
    below = {path for path in open_paths if "{" in path}
    assert open_paths - below <= set(OPEN)
    assert below == {"/assets/{path:path}", "/docs/assets/{path:path}", "/client/{name}"}
    assert {path: client.get(path).status_code for path in OPEN} == dict.fromkeys(OPEN, 200)
    assert {path: client.get(path).status_code for path in GUARDED} == dict.fromkeys(GUARDED, 401)
    with client_of() as open_to_all:
        assert 401 not in {open_to_all.get(path).status_code for path in (*OPEN, *GUARDED)}


@pytest.mark.parametrize(
    "target", ["/health/../predict", "/docs/../predict", "/docs/%2e%2e/predict", "/assets/../page.py"]
)
def test_path_traversal_does_not_bypass_the_key(client, target):
    # As raw as ASGI hands it over: clients resolve the dots themselves.
    assert client.ask("GET", target)[0]["status"] == (404 if target.startswith("/assets/") else 401)


@pytest.mark.parametrize(
    "headers",
    [
        lambda key: {"Authorization": f"bearer {key}"},
        lambda key: {"Authorization": f"Bearer   {key} "},
        lambda key: {"X-API-Key": key, "Authorization": "Basic dXNlcjpwYXNz"},
        lambda key: {"X-API-Key": "something else", "Authorization": f"Bearer {key}"},
    ],
)
def test_known_key_is_accepted_in_either_header(client, key, headers):
    answer = client.post("/predict", headers=headers(key), files={"files": ("cat.png", PNG)})
    assert answer.status_code == 200
    assert answer.json()["summary"] == {"ok": 1, "failed": 0}


@pytest.mark.parametrize(
    "headers",
    [
        lambda key: {},
        lambda key: {"Authorization": "Bearer "},
        lambda key: {"Authorization": key},
        lambda key: {"Authorization": f"Basic {key}"},
        lambda key: {"X-API-Key": ""},
        lambda key: {"Cookie": f"key={key}"},
    ],
)
def test_missing_key_error_explains_how_to_send_one(client, key, headers):
    """A key in the query is ignored."""
    query = {"key": key, "api_key": key}
    answer = client.post("/predict", params=query, headers=headers(key), files={"files": ("cat.png", PNG)})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json() == {
        "type": "about:blank",
        "title": "An API key is required",
        "status": 401,
        "code": "unauthorized",
        "detail": "An API key is required: send it as 'Authorization: Bearer KEY' or as 'X-API-Key: KEY'.",
        "request_id": answer.headers["x-request-id"],
    }


@pytest.mark.parametrize(
    "change", [lambda key: key[:-1], lambda key: key + "x", lambda key: "é", lambda key: "x" * 9000]
)
def test_unknown_key_is_refused_and_not_echoed(client, key, change):
    sent = change(key)
    answer = client.get("/models", headers={"X-API-Key": sent.encode("latin-1")})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    assert "Unknown API key" in answer.json()["detail"]
    assert sent not in answer.text


def test_request_without_known_key_is_refused_before_its_body(client):
    def body(sent):
        assert [message["type"] for message in sent][:1] == ["http.response.start"]
        return {"type": "http.disconnect"}

    headers = ((b"content-type", b"image/jpeg"), (b"content-length", b"1000000000"), (b"x-api-key", b"wrong"))
    sent = client.ask("POST", "/predict", headers, body=body)
    assert sent[0]["status"] == 401
    assert json.loads(b"".join(message.get("body", b"") for message in sent[1:]))["code"] == "unauthorized"


@pytest.mark.parametrize("setting", ["api_keys_file", "admin_keys_file"])
@pytest.mark.parametrize("text", [None, "half a li"])
def test_unreadable_key_file_stops_the_start(path, setting, text):
    if text is not None:
        path.write_text(text)
    with pytest.raises(KeysError):
        create_app(Settings(_env_file=None, **{setting: path}), StubBackend())


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_keys_appear_in_no_log_and_no_response(path, key, log_format):
    unknown = add_key(path.with_name("other"), "other")
    asks = [
        (method, target, headers)
        for value in (key, unknown)
        for headers in (bearer(value), {"X-API-Key": value})
        for method, target in (("GET", "/models"), ("POST", "/predict"), ("GET", "/nothing"), ("GET", "/docs"))
    ]
    answers, log = logged(asks, fault="boom", api_keys_file=path, log_format=log_format, log_level="debug")
    assert {status for status, *_ in answers} == {200, 401, 404, 415, 500}
    assert "boom" in log
    assert key not in f"{log}{answers}"
    assert unknown not in f"{log}{answers}"


def test_openapi_document_declares_the_keys(client):
    document = client.get("/openapi.json").json()
    assert document["components"]["securitySchemes"] == {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    }
    operations = {path: operation for path, by_method in document["paths"].items() for operation in by_method.values()}
    guarded = {path for path, operation in operations.items() if "security" in operation}
    assert guarded >= {"/predict", "/models", "/models/{name}"}
    assert set(operations) - guarded == {"/health/live", "/health/ready", "/metrics"}
    for path in guarded:
        assert operations[path]["security"] == [{"bearer": []}, {"header": []}]
        assert list(operations[path]["responses"]["401"]["content"]) == ["application/problem+json"]
    with client_of() as without_keys:
        document = without_keys.get("/openapi.json").text
    assert [words for words in ("securitySchemes", '"401"', "/load") if words in document] == []


@pytest.fixture
def admins(tmp_path: Path) -> Path:
    return tmp_path / "admins"


@pytest.fixture
def admin_key(admins: Path) -> str:
    return add_key(admins, "ops")


CODES = {401: "unauthorized", 403: "forbidden", 404: "not_found", 409: "model_in_use"}
LOAD, UNLOAD = "POST /models/birds/load", "POST /models/birds/unload"
USE = "POST /models/birds/use?versions=1"
KEYS, ADMINS = "api_keys_file", "admin_keys_file"
BOTH = (KEYS, ADMINS)


@pytest.mark.parametrize(
    ("files", "metrics_access", "asked", "statuses"),
    [
        # Statuses without a key, with an unknown one, with a key, and with an admin key.
        ((), "", LOAD, (404, 404, 404, 404)),
        ((), "", UNLOAD, (404, 404, 404, 404)),
        ((KEYS,), "", LOAD, (401, 401, 403, 401)),
        ((KEYS,), "", UNLOAD, (401, 401, 403, 401)),
        ((KEYS,), "", USE, (401, 401, 403, 401)),
        ((), "", USE, (404, 404, 404, 404)),
        (BOTH, "", USE, (401, 401, 403, 404)),  # this service has no repository
        (BOTH, "", LOAD, (401, 401, 403, 200)),
        (BOTH, "", UNLOAD, (401, 401, 403, 204)),
        (BOTH, "", "POST /models/ensemble_model/unload", (401, 401, 403, 409)),
        # An admin may also do what others may, and others still need their keys.
        (BOTH, "", "GET /models", (401, 401, 200, 200)),
        ((ADMINS,), "", "GET /models", (200, 200, 200, 200)),
        ((ADMINS,), "", LOAD, (401, 401, 401)),
        ((ADMINS,), "", f"{LOAD}/", (404, 404, 404)),
        (BOTH, "key", "GET /metrics", (401, 401, 200, 200)),
        (BOTH, "admin", "GET /metrics", (401, 401, 403, 200)),
        (BOTH, "admin", "GET /health/live", (200, 200, 200, 200)),
    ],
)
def test_route_needs_a_key_or_an_admin_key(path, key, admins, admin_key, files, metrics_access, asked, statuses):
    folder = {KEYS: path, ADMINS: admins}
    settings = {name: folder[name] for name in files} | ({"metrics_access": metrics_access} if metrics_access else {})
    with client_of(**settings) as client:
        for value, status in zip((None, "tig_unknown", key, admin_key), statuses, strict=False):
            for name, header in ((b"authorization", f"Bearer {value}"), (b"x-api-key", f"{value}")):
                headers = [(name, header.encode())] if value else []
                start, *rest = client.ask(*asked.split(), headers)
                assert start["status"] == status, (value, name)
                content = b"".join(message.get("body", b"") for message in rest)
                assert status < 400 or json.loads(content)["code"] == CODES[status]


def test_readiness_details_need_a_key(client, key):
    stranger, holder = client.get("/health/ready"), client.get("/health/ready", headers=bearer(key))
    assert stranger.status_code == holder.status_code == 200
    assert stranger.json() == {"status": "ready", "model": "ensemble_model", "models": {}, "sizes": [], "endpoints": []}
    assert holder.json()["endpoints"][0]["triton"] == "127.0.0.1:8001"
    assert holder.json()["sizes"] == ["gateway: 1 process, each with up to 32 images in Triton and 64 waiting"]
    assert "127.0.0.1:8001" not in client.get("/health/ready", headers=bearer("tig_unknown")).text
    with client_of() as open_to_all:
        assert open_to_all.get("/health/ready").json()["endpoints"]


@pytest.mark.parametrize(
    ("access", "files"),
    [("key", ()), ("key", ("admin_keys_file",)), ("admin", ()), ("admin", ("api_keys_file",))],
)
def test_metrics_that_nobody_could_read_stop_the_start(path, key, access, files):
    settings = Settings(metrics_access=access, **dict.fromkeys(files, path))
    with pytest.raises(UserError, match=f"^GATEWAY_METRICS_ACCESS={access}, and there are no such keys"):
        create_app(settings)
