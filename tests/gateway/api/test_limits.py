"""Limits of uploads, responses and the queue.

A request at a limit succeeds; one past it is refused, and the error names the limit and its value.
"""

import json
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from prometheus_client import REGISTRY
from starlette.types import Message

from gateway.api.answers import PiecedAnswer
from gateway.api.middleware import MAX_QUERY_PARAMETERS
from gateway.api.routes.limits import FIXED
from gateway.api.schemas import PredictResponse
from gateway.errors import Overloaded
from gateway.inference.result import MAX_TOP_K
from gateway.ingest.inspection import MAX_IMAGE_SIDE
from gateway.ingest.multipart import MAX_PART_HEADER_BYTES
from gateway.limits.admission import Admission
from gateway.limits.pools import response_buffer
from tests.doubles.backend import PNG, StubBackend, ranked
from tests.gateway.api.tensors import INFER, in_json
from tests.processes import wait_for
from tests.samples import encode
from tests.services import ROUTES, Client, client_of, stub_service
from tests.settings import Settings

SMALL = {
    "max_files": 3,
    "max_file_bytes": 36_000,
    "max_request_bytes": 100_000,
    "max_image_pixels": 20_000,
    "max_timeout_seconds": 60,
}
VALUES = {**SMALL, "max_part_header_bytes": MAX_PART_HEADER_BYTES, "max_top_k": MAX_TOP_K}
Form = Callable[..., dict[str, Any]]
FORM = {"Content-Type": "multipart/form-data; boundary=b"}


@pytest.fixture(scope="module")
def http() -> Iterator[Client]:
    with client_of(**SMALL) as client:
        yield client


def image(width: int, height: int, image_format: str = "PNG") -> bytes:
    return encode(Image.new("RGB", (width, height), "teal"), image_format)


SMALL_IMAGE = image(50, 50)


def padded(nbytes: int) -> bytes:
    """A JPEG of an exact size, padded with bytes that decoders ignore."""
    return image(50, 50, "JPEG").ljust(nbytes, b"\0")


def error_of(answer: httpx.Response, index: int = 0) -> str | None:
    error = answer.json()["results"][index]["error"]
    return error["code"] if error else None


def is_problem(answer: httpx.Response, status: int, code: str, limit: str) -> bool:
    body = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, body["code"], body["limit"], body["value"]) == (status, code, limit, VALUES[limit])
    return True


def test_limits_are_published_with_their_errors(http: Client):
    limits = {limit["name"]: limit for limit in http.get("/limits").json()["limits"]}
    chosen = Settings(_env_file=None, **SMALL)
    settings, fixed = Settings.limits(), {**FIXED, **Settings.all_fixed_limits()}
    assert set(limits) == {*settings, *fixed}
    for name, limit in settings.items():
        assert limits[name]["value"] == getattr(chosen, name)
        assert limits[name]["setting"] == (f"GATEWAY_{name.upper()}" if name in Settings.variables() else None)
        assert (limits[name]["unit"], limits[name]["code"]) == (limit.unit, limit.error.code)
    for name, each in fixed.items():
        code = each.error.code
        assert limits[name] == {"name": name, "value": each.value, "unit": each.unit, "code": code, "setting": None}


def multipart(*images: bytes) -> dict[str, Any]:
    return {"files": [("f", (f"{n}", image)) for n, image in enumerate(images)]}


def json_body(*images: bytes) -> dict[str, Any]:
    return {"json": {"images": [{"b64": b64encode(image).decode()} for image in images]}}


both_forms = pytest.mark.parametrize("form", [multipart, json_body])


@both_forms
def test_max_files(http: Client, form: Form):
    assert is_problem(http.post("/predict", **form(*[SMALL_IMAGE] * 4)), 413, "too_many_files", "max_files")
    assert http.post("/predict", **form(*[SMALL_IMAGE] * 3)).json()["summary"] == {"ok": 3, "failed": 0}


@both_forms
def test_too_large_file_leaves_the_other_results(http: Client, form: Form):
    answer = http.post("/predict", **form(padded(36_000), padded(36_001), SMALL_IMAGE))
    assert [error_of(answer, n) for n in range(3)] == [None, "file_too_large", None]


def test_max_file_bytes_of_a_raw_body(http: Client):
    headers = {"Content-Type": "image/jpeg"}
    assert http.post("/predict", content=padded(36_000), headers=headers).status_code == 200
    answer = http.post("/predict", content=padded(36_001), headers=headers)
    assert is_problem(answer, 413, "file_too_large", "max_file_bytes")


def json_of(total: int) -> bytes:
    """A JSON body of an exact length, of three images."""
    body = json.dumps(json_body(padded(24_000), padded(24_000), padded(24_000))["json"]).encode()
    return body + b" " * (total - len(body))


def multipart_of(total: int) -> bytes:
    """A multipart body of an exact length, of three files."""
    head = b'--b\r\nContent-Disposition: form-data; name="f"; filename="x.jpg"\r\n\r\n'
    sizes = [33_000, 33_000]
    overhead = 3 * (len(head) + 2) + len(b"--b--\r\n")
    sizes.append(total - overhead - sum(sizes))
    return b"".join(head + padded(size) + b"\r\n" for size in sizes) + b"--b--\r\n"


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("body_of", [multipart_of, json_of])
def test_max_request_bytes(http: Client, body_of: Callable[[int], bytes], chunked: bool):
    headers = FORM if body_of is multipart_of else {"Content-Type": "application/json"}

    async def pieces(body: bytes):
        yield body[:5_000]
        yield body[5_000:]

    def send(total: int) -> httpx.Response:
        body = body_of(total)
        assert len(body) == total
        content = pieces(body) if chunked else body
        return http.post("/predict", content=content, headers=headers)

    assert send(100_000).json()["summary"] == {"ok": 3, "failed": 0}
    assert is_problem(send(100_001), 413, "request_too_large", "max_request_bytes")


def test_max_image_pixels_and_side(http: Client):
    shapes = {
        (200, 100): None,
        (201, 100): "image_too_large",
        (MAX_IMAGE_SIDE, 1): None,
        (MAX_IMAGE_SIDE + 1, 1): "image_too_large",
    }
    for (width, height), code in shapes.items():
        answer = http.post("/predict", files={"f": ("x.png", image(width, height))})
        assert error_of(answer) == code, (width, height)
        assert answer.status_code == (422 if code else 200)


@pytest.mark.parametrize(("name", "limit"), [("top_k", "max_top_k"), ("timeout", "max_timeout_seconds")])
def test_limits_of_parameters(http: Client, name: str, limit: str):
    def send(value: int) -> httpx.Response:
        return http.post("/predict", params={name: value}, files={"f": ("x", b"no image")})

    assert send(VALUES[limit]).status_code == 415
    assert is_problem(send(VALUES[limit] + 1), 422, "invalid_parameter", limit)


# Large responses: limited, complete, and as the OpenAPI document describes them.
CLASSES = 500


def wide() -> StubBackend:
    """A backend that knows many classes."""
    labels = [f"class {number}" for number in range(CLASSES)]
    return StubBackend(ranked(labels, np.linspace(1, 0, CLASSES, dtype=np.float32)), labels=labels)


def classify(client: Client, count: int, top_k: int, **headers: str) -> httpx.Response:
    files = [("f", (f"{number}.png", PNG)) for number in range(count)]
    return client.post("/predict", params={"top_k": top_k}, files=files, headers=headers)


def test_large_answer_is_complete_and_as_documented():
    with client_of(wide()) as client:
        answer = classify(client, 20, CLASSES)
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["content-length"]) == len(answer.content) > 500_000
    read = PredictResponse.model_validate_json(answer.content)
    assert [(result.index, result.filename) for result in read.results] == [(n, f"{n}.png") for n in range(20)]
    assert [len(result.predictions) for result in read.results] == [CLASSES] * 20
    assert list(answer.json()["results"][0]) == list(read.results[0].model_dump(exclude_unset=True))


async def test_full_response_buffer_is_an_error_before_the_response_begins():
    """A single large result is counted when it is sent: the client gets a 503, not half a response."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    pool = response_buffer(1_000_000)
    other, held = (pool.lease(amount=nbytes) for nbytes in (600_000, 1_000))
    with pytest.raises(Overloaded):
        await PiecedAnswer(deque((bytes(500_000),)), held)({}, None, send)
    assert sent == []
    for lease in (other, held):
        lease.release()


def test_answer_size_counts_existing_predictions_not_requested_ones(monkeypatch):
    monkeypatch.setattr("gateway.api.answers.MAX_PREDICTIONS", 2 * CLASSES)
    with client_of(wide()) as client:
        assert classify(client, 2, 1_000).status_code == 200
        refused = classify(client, 3, 1_000)
    assert (refused.status_code, refused.json()["code"]) == (422, "answer_too_large")
    assert (refused.json()["limit"], refused.json()["value"]) == ("max_predictions", 2 * CLASSES)


def test_streamed_lines_are_not_bounded_by_max_predictions(monkeypatch):
    monkeypatch.setattr("gateway.api.answers.MAX_PREDICTIONS", CLASSES)
    with client_of(wide()) as client:
        answer = classify(client, 3, CLASSES, Accept="application/x-ndjson")
    *lines, last = map(json.loads, answer.text.splitlines())
    assert [len(line["predictions"]) for line in lines] == [CLASSES] * 3
    assert last["summary"] == {"ok": 3, "failed": 0}


@pytest.mark.parametrize(
    ("class_count", "count", "status"),
    [(0, 10, 200), (0, 11, 422), (CLASSES, 1, 200), (CLASSES, 2, 422), (400, 1, 200)],
)
def test_scores_count_a_tenth_of_a_class(monkeypatch, class_count, count, status):
    monkeypatch.setattr("gateway.api.answers.MAX_PREDICTIONS", CLASSES)
    outputs = [{"name": "PREDICTION", "parameters": {"classification": class_count}}]
    with client_of(wide()) as client:
        answer = client.post(INFER, json=in_json(*[PNG] * count, outputs=outputs))
    assert answer.status_code == status, answer.text
    if status == 200:
        assert len(answer.json()["outputs"][0]["data"]) == (class_count or CLASSES) * count


def test_query_has_a_maximum_of_parameters(client):
    most = client.post("/predict?" + "&".join(map(str, range(MAX_QUERY_PARAMETERS))), content=b"")
    more = client.post("/predict?" + "&" * MAX_QUERY_PARAMETERS, content=b"")
    assert (most.status_code, most.json()["code"]) == (422, "invalid_parameter")
    assert "more." in most.json()["detail"]
    assert len(most.content) < 2_000
    assert str(MAX_QUERY_PARAMETERS) in more.json()["detail"]


# Early load shedding: while the queue is full, requests with images are refused before any other work.
WITH_IMAGES = [route.path for route in ROUTES if route.traits.takes_images]


@pytest.fixture
def full(monkeypatch) -> None:
    """The queue is full."""

    def refuse(_: Admission, share: object) -> None:
        raise Overloaded("Full.")

    monkeypatch.setattr(Admission, "check", refuse)


def refusals(route: str) -> float:
    labels = {"route": route, "status": "503", "code": "overloaded"}
    return REGISTRY.get_sample_value("gateway_requests_total", labels) or 0.0


@pytest.mark.parametrize("route", WITH_IMAGES)
def test_full_queue_refuses_a_request_before_its_body(client, full, route):
    def body(sent: list[Message]) -> Message:
        raise AssertionError("the body was asked for")

    path, before = route.format(name="m", version="1"), refusals(route)
    start, content = client.ask("POST", path, body=body)
    assert start["status"] == 503
    assert (b"retry-after", b"1") in start["headers"]
    assert ("error" in json.loads(content["body"])) == path.startswith("/v2")
    assert refusals(route) == before + 1


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/predict", 405), ("POST", "/models", 405), ("POST", "/predict/more", 404), ("GET", "/models", 200)],
)
def test_other_requests_pass_a_full_queue(client, full, method, path, status):
    assert client.request(method, path).status_code == status
    assert client.get("/v2/models/ensemble_model").status_code == 200


@pytest.mark.parametrize(
    ("limit", "value"), [("max_images_waiting", 1), ("max_wait_seconds", 1)], ids=["length", "longest wait"]
)
def test_queue_has_a_length_and_a_longest_wait(limit, value):
    """With one image in flight, a second one waits; a third one is refused at once, or the second after a while."""
    backend = StubBackend()
    backend.gate.clear()
    limits = {"max_images_in_flight": 1, limit: value}
    with stub_service(backend, **limits) as url, ThreadPoolExecutor(2) as threads:

        def send() -> httpx.Response:
            return httpx.post(f"{url}/predict", files={"f": ("a.png", PNG)}, timeout=60)

        in_flight = threads.submit(send)
        wait_for(lambda: backend.calls)
        waiting = threads.submit(send)
        if limit == "max_wait_seconds":
            refused = waiting.result()
        else:
            wait_for(lambda: REGISTRY.get_sample_value("gateway_images_waiting") == 1)
            refused = send()
            assert not waiting.done()
        problem = refused.json()
        assert (refused.status_code, problem["code"], problem["limit"]) == (503, "overloaded", limit)
        assert problem["value"] == value
        assert int(refused.headers["retry-after"]) >= 1
        assert not in_flight.done()
        backend.gate.set()
        assert in_flight.result().status_code == 200
        assert waiting.result().status_code == (503 if limit == "max_wait_seconds" else 200)
