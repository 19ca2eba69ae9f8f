"""HEAD answers where GET does, with the same headers and without its body."""

import pytest
import structlog

from tests.services import client_of

PATHS = [
    "/",
    "/assets/page.js",
    "/client/",
    "/client/triton-image-gateway-client/",
    "/docs",
    "/docs/assets/swagger-ui.css",
    "/health/live",
    "/health/ready",
    "/limits",
    "/metrics",
    "/models",
    "/models/ensemble_model",
    "/openapi.json",
    "/v2",
    "/v2/health/live",
    "/v2/models/ensemble_model",
]


@pytest.fixture(scope="module")
def client():
    with client_of() as client:
        yield client


@pytest.mark.parametrize("path", PATHS)
def test_head_equals_get_without_a_body(client, path):
    get, head = client.get(path), client.request("HEAD", path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    changing = {"x-request-id", "server-timing"} | ({"content-length"} if path == "/metrics" else set())
    assert {name: value for name, value in head.headers.items() if name not in changing} == {
        name: value for name, value in get.headers.items() if name not in changing
    }


@pytest.mark.parametrize(("path", "status"), [("/predict", 405), ("/nothing", 404), ("/assets/none.js", 404)])
def test_head_is_refused_where_get_is(client, path, status):
    answer = client.request("HEAD", path)
    assert (answer.status_code, answer.content) == (status, b"")


@pytest.mark.parametrize("path", ["/assets/page.js", "/docs/assets/swagger-ui.css", "/health/live"])
def test_assets_are_logged_at_debug_level(client, path):
    with structlog.testing.capture_logs() as logs:
        client.get(path)
        client.request("HEAD", path)
    # A machine that is busy elsewhere is told of as well.
    told = [event for event in logs if event["event"] == "request"]
    assert [(event["log_level"], event["method"]) for event in told] == [("debug", "GET"), ("debug", "HEAD")]


def test_assets_are_counted_as_one_route(client):
    client.get("/assets/page.js")
    assert 'route="/assets/{path:path}",status="200"' in client.get("/metrics").text


def test_files_outside_the_assets_are_unreachable(client):
    sent = client.ask("GET", "/assets/../page.py")
    assert sent[0]["status"] == 404
