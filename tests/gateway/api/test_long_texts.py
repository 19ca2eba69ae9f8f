"""Long texts of clients cause no error of the service, and little of them is repeated."""

import json
from base64 import b64encode
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import pytest
import structlog

from gateway.errors import MAX_MESSAGE_BYTES, ModelNotFound
from gateway.logs import Repeats
from tests.doubles.backend import PNG, StubBackend, with_vector
from tests.gateway.api.test_client_errors import HEADERS
from tests.services import ROUTES, Client, client_of

LONG = "Q" * 200_000
"""More than any message, with a letter that no message has."""
MOST = 1_000
IMAGE = b64encode(PNG).decode()
JSON = "application/json"
FORM = "multipart/form-data; boundary=b"


def part(disposition: str, content: str = "x", more: str = "") -> str:
    return f"--b\r\nContent-Disposition: form-data; {disposition}\r\n{more}\r\n{content}\r\n"


def form(*parts: str) -> tuple[str, bytes]:
    return FORM, ("".join(parts) + "--b--\r\n").encode("latin-1")


def document(**members: object) -> tuple[str, bytes]:
    return JSON, json.dumps(members).encode()


SHORT = LONG[:15_000]
"""Less than the headers of a part may have."""
FILE = part('name="f"; filename="a"')
TENSOR = {"name": "IMAGE", "shape": [1], "datatype": "BYTES", "data": [IMAGE]}
OUTPUT = {"name": "PREDICTION"}
BODIES = {
    "name of a file": form(part(f'name="f"; filename="{SHORT}"')),
    "name of a file, encoded": form(part(f"name=f; filename*=UTF-8''{SHORT}")),
    "name of a field": form(part(f'name="{SHORT}"'), FILE),
    "name of a long field": form(part(f'name="{SHORT}"', LONG[:60_000])),
    "name of a field behind a file": form(FILE, part(f'name="{SHORT}"')),
    "type of a part": form(part('name="f"; filename="a"', more=f"Content-Type: {SHORT}\r\n")),
    **{
        f"field {name}": form(part(f'name="{name}"', LONG[:60_000]), FILE)
        for name in ("top_k", "model", "labels", "version", "timeout", "frames", "format", "threshold", "strict")
    },
    "boundary": (f"multipart/form-data; boundary={LONG}", b"--b"),
    "type": (f"image/{LONG}", PNG),
    "other type": (LONG, PNG),
    "text": (JSON, LONG.encode()),
    "string": (JSON, json.dumps(LONG).encode()),
    "number": (JSON, b"[" + b"9" * 4_000 + b"]"),
    "member": document(**{LONG: 1}),
    "name in JSON": document(images=[{"b64": IMAGE, "filename": LONG}]),
    "member of an image": document(images=[{"b64": IMAGE, LONG: 1}]),
    "no base64": document(images=[{"b64": LONG + "!"}]),
    "base64": document(images=[{"b64": LONG}]),
    "URL": document(images=[{"url": f"https://{LONG}.example/"}]),
    "path of a URL": document(images=[{"url": f"https://images.example/{LONG}"}]),
    "inputs": document(inputs=LONG),
    "parameter of inputs": document(inputs=IMAGE, parameters={LONG: 1}),
    "value of inputs": document(inputs=IMAGE, parameters={"top_k": LONG}),
    "id of a request": document(id=LONG, inputs=[TENSOR]),
    "id of a wrong request": document(id=LONG, inputs=[]),
    **{f"tensor's {name}": document(inputs=[{**TENSOR, name: LONG}]) for name in TENSOR},
    "tensor's member": document(inputs=[{**TENSOR, LONG: 1}]),
    "tensor's shape": document(inputs=[{**TENSOR, "shape": [LONG]}]),
    "tensor's parameter": document(inputs=[{**TENSOR, "parameters": {LONG: LONG}}]),
    "output": document(inputs=[TENSOR], outputs=[{"name": LONG}]),
    "output's parameter": document(
        inputs=[TENSOR], outputs=[{**OUTPUT, "parameters": {LONG: 1, "classification": LONG}}]
    ),
    "parameter": document(inputs=[TENSOR], parameters={LONG: 1}),
    "timeout": document(inputs=[TENSOR], parameters={"timeout": LONG}),
    "feedback": document(request_id=LONG, index=LONG, label=LONG),
    "label": document(request_id="a", index=0, label=LONG),
    "masks": document(masks=LONG),
}
QUERIES = ("top_k", "model", "labels", "version", "timeout", "frames", "format", "threshold", "strict", "target", LONG)
HEADS = (*HEADERS, "x-client-id", "x-prediction-fields", "sec-websocket-protocol", "expect", LONG)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with client_of(
        StubBackend(with_vector), cors_origins="https://app.example", fetch_urls="https://images.example"
    ) as client:
        yield client


@pytest.fixture
def events() -> Iterator[list[dict[str, Any]]]:
    shorten = Repeats().shorten
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars, shorten]) as captured:
        yield captured


def check(client: Client, events: list, method: str, path: str, body: bytes = b"", **headers: str) -> None:
    """Send a request; raises AssertionError if it is an error of the service, or much of its text comes back."""
    fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    messages = chain([{"type": "http.request", "body": body}], repeat({"type": "http.disconnect"}))
    start, *rest = client.ask(method, path, fields, body=lambda _: next(messages)) or [{"status": 499, "headers": []}]
    what = (method, path[:80], body[:80], {name[:80]: value[:80] for name, value in headers.items()})
    assert start["status"] < 500, what
    assert sum(value.count(b"Q") for _, value in start["headers"]) <= MOST, what
    content = b"".join(message.get("body", b"") for message in rest)
    assert content.count(b"Q") <= MOST, (what, content[:300])
    for event in events:
        assert event["log_level"] != "error", event
        assert str(event).count("Q") <= MOST, (what, str(event)[:300])
    events.clear()


@pytest.mark.parametrize("route", list(ROUTES), ids=lambda route: route.path)
def test_long_text_in_url_and_headers(client, events, route):
    path = route.path.replace("{path:path}", LONG).replace("{name:path}", LONG)
    for name in ("name", "version", "number"):
        path = path.replace(f"{{{name}}}", LONG)
    for method in route.methods:
        check(client, events, method, path)
        for name in HEADS:
            check(client, events, method, route.path, PNG, **{"content-type": "image/png", name: LONG})
        for name in QUERIES:
            check(client, events, method, f"{route.path}?{name}={LONG}", PNG, **{"content-type": "image/png"})
    check(client, events, LONG, path)


POSTS = [
    route.path.replace("{name}", "ensemble_model").replace("{version}", "1")
    for route in ROUTES
    if "POST" in route.methods
]


@pytest.mark.parametrize("path", POSTS)
def test_long_text_in_a_body(client, events, path):
    for content_type, body in BODIES.values():
        check(client, events, "POST", path, body, **{"content-type": content_type})


def test_message_of_an_error_is_bounded():
    """It may quote anything, not only the names of models, hosts and files that the service knows."""
    for text in (LONG, "é" * 2_000, "\U0001f408" * 1_000, "\ud800" * 3_000):
        message = f"There is no model {text!r}; GET /models lists all."
        bounded = ModelNotFound(message).message
        assert len(bounded.encode()) <= MAX_MESSAGE_BYTES + 10
        assert (bounded[:5], bounded[-5:]) == ("There", " all.")
    with client_of(StubBackend(ModelNotFound(f"There is no model {LONG!r}."))) as client:
        for path in ("/predict", "/v2/models/m/infer", "/models/m"):
            assert client.post(path, content=PNG, headers={"Content-Type": "image/png"}).text.count("Q") <= MOST
