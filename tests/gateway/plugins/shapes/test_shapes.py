"""Responses in the shapes of other services, and requests of Hugging Face's InferenceClient."""

import base64
import json

import pytest
from pydantic import TypeAdapter

from gateway.api.answers import Native
from gateway.app import create_app
from gateway.errors import Overloaded
from gateway.inference.result import Prediction, Row
from gateway.plugins.shapes.shapes import SHAPES
from tests.doubles.backend import PNG, StubBackend, ranked
from tests.processes import PROJECT
from tests.services import Client, client_of, client_of_app
from tests.settings import Settings

ROW = Row(predictions=(Prediction("cat", 0, 0.9), Prediction("dog", 1, 0.7)))
TEXT = b"not an image"
INPUTS = base64.b64encode(PNG).decode()


def seer() -> StubBackend:
    """A backend that sees a cat and a dog in every image."""
    return StubBackend(ROW)


@pytest.fixture
def client():
    with client_of(seer()) as client:
        yield client


def ask(client: Client, shape: str, *contents: bytes) -> object:
    files = [("f", (f"{number}.png", content)) for number, content in enumerate(contents)]
    answer = client.post("/predict", params={"format": shape}, files=files, headers={"X-Request-ID": "r1"})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


ONE = {
    "huggingface": [{"label": "cat", "score": 0.9}, {"label": "dog", "score": 0.7}],
    "kserve-v1": {"predictions": [{"classes": ["cat", "dog"], "scores": [0.9, 0.7]}]},
}
"""ROW in each shape; a new shape needs an entry here and in ERRORS."""
SENTENCE = "not a JPEG"
ERRORS = {
    "huggingface": lambda error: error["error"],
    "kserve-v1": lambda error: error["error"],
}


def test_every_shape_has_examples():
    reference = (PROJECT / "docs" / "reference" / "http-api.md").read_text()
    assert ONE.keys() == ERRORS.keys() == SHAPES.keys(), "each shape needs an example in ONE, and one in ERRORS"
    assert {shape for shape in SHAPES if f"format={shape}" not in reference} == set(), "add examples to http-api.md"


@pytest.mark.parametrize("shape", ONE)
def test_one_file_gets_one_result(client, shape):
    assert ask(client, shape, PNG) == ONE[shape]


@pytest.mark.parametrize("shape", ONE)
def test_several_files_get_a_list_with_errors_in_place(client, shape):
    answer = ask(client, shape, PNG, TEXT, PNG)
    listed = answer["predictions"] if shape == "kserve-v1" else answer
    one = ONE[shape]["predictions"][0] if shape == "kserve-v1" else ONE[shape]
    assert [listed[0], listed[2]] == [one, one]
    assert SENTENCE in ERRORS[shape](listed[1])


@pytest.mark.parametrize("shape", ["native", *SHAPES])
def test_responses_of_every_shape_match_the_openapi_document(client, shape):
    shapes = {**SHAPES, "native": Native()}
    documents: TypeAdapter[object] = TypeAdapter(shapes[shape].documents)
    for contents in ([PNG], [PNG, TEXT]):
        documents.validate_python(ask(client, shape, *contents))


@pytest.mark.parametrize("shape", ONE)
def test_errors_of_a_request_keep_their_status(client, shape):
    """One invalid file, or a fault of the service, is a problem document; several are in the shape."""
    several = client.post("/predict", params={"format": shape}, files=[("f", (name, TEXT)) for name in "ab"])
    assert (several.status_code, several.text.count(SENTENCE)) == (422, 2)
    single = client.post("/predict", params={"format": shape}, files={"f": TEXT})
    with client_of(StubBackend(Overloaded())) as overloaded:
        fault = overloaded.post("/predict", params={"format": shape}, files={"f": PNG})
    for answer, status, code in ((single, 415, "unsupported_format"), (fault, 503, "overloaded")):
        assert answer.headers["content-type"] == "application/problem+json"
        assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_native_shape_is_the_default_and_a_form_field_names_another(client):
    bodies = [client.post("/predict", params=params, files={"f": PNG}).json() for params in ({}, {"format": "native"})]
    assert bodies[0] == bodies[1]
    assert bodies[0]["summary"] == {"ok": 1, "failed": 0}
    answer = client.post("/predict", data={"format": "kserve-v1"}, files={"f": PNG})
    assert answer.json() == ONE["kserve-v1"]


def test_unknown_shape_error_lists_the_shapes(client):
    answer = client.post("/predict", params={"format": "xml"}, files={"f": PNG})
    assert answer.status_code == 422
    *first, last = (repr(shape) for shape in ("native", *SHAPES))
    assert f"{', '.join(first)} or {last}" in answer.json()["detail"]


def test_streamed_lines_have_the_native_shape_only(client):
    headers = {"Accept": "application/x-ndjson"}
    answer = client.post("/predict", params={"format": "kserve-v1"}, files={"f": PNG}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_parameter")


def test_service_without_plugins_has_its_own_format_alone(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # without a developer's .env
    app = create_app(Settings(_env_file=None), seer(), plugins=())
    assert app.openapi()["components"]["schemas"]["Shape"]["enum"] == ["native"]
    with client_of_app(app) as client:
        answer = client.post("/predict", params={"format": "kserve-v1"}, files={"f": PNG})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_parameter")
        answer = client.post("/predict", json={"inputs": INPUTS})
        assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
        assert client.post("/predict", files={"f": PNG}).json()["summary"] == {"ok": 1, "failed": 0}


def ask_in_json(client: Client, body: object):
    """Send a body of Hugging Face's InferenceClient: it sends JSON if there are parameters, else a raw image."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.post("/predict", content=content, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": INPUTS, "parameters": {"top_k": 2}},  # image_classification(image, top_k=2)
        # Parameters are optional, and may come first.
        {"inputs": INPUTS},
        {"parameters": {"top_k": None}, "inputs": INPUTS},
    ],
)
def test_request_of_hugging_face_gets_its_shape(client, body):
    answer = ask_in_json(client, body)
    assert (answer.status_code, answer.json()) == (200, ONE["huggingface"])


def test_bytes_without_a_media_type_are_an_image(client):
    """As InferenceClient.image_classification(bytes) and requests.post(url, data=file) send them."""
    answer = client.post("/predict", params={"format": "huggingface"}, content=PNG)
    assert "content-type" not in answer.request.headers
    assert (answer.status_code, answer.json()) == (200, ONE["huggingface"])
    empty = client.post("/predict")
    assert (empty.status_code, empty.json()["code"]) == (415, "unsupported_media_type")
    assert "The request has no Content-Type" in empty.json()["detail"]


def test_top_k_in_the_body_selects_the_classes():
    with client_of(StubBackend(ranked(["cat", "dog"], [0.9, 0.7]))) as client:
        for top_k in (1, 2):
            answer = ask_in_json(client, {"inputs": INPUTS, "parameters": {"top_k": top_k}})
            assert answer.json() == ONE["huggingface"][:top_k]


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"top_k": 100_000}, "'top_k': must be at most"),
        ({"top_k": "many"}, "'top_k'"),
        ({"function_to_apply": "softmax"}, "'function_to_apply' is not a parameter: there is only top_k."),
    ],
)
def test_unsupported_parameter_is_refused(client, parameters, said):
    answer = ask_in_json(client, {"inputs": INPUTS, "parameters": parameters})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_parameter")
    assert said in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"inputs": "no base64!"}, "invalid_image"),
        ({"inputs": ""}, "empty_file"),
        ({"inputs": [INPUTS]}, "invalid_body"),
        ({"parameters": {}}, "invalid_body"),
        ({"inputs": INPUTS, "parameters": 1}, "invalid_body"),
        ({"inputs": INPUTS, "options": {}}, "unknown_field"),
        (b'{"inputs": "', "invalid_body"),
    ],
)
def test_invalid_body_has_its_code(client, body, code):
    answer = ask_in_json(client, body)
    assert (answer.status_code // 100, answer.json()["code"]) == (4, code)
