"""Requests of Hugging Face's InferenceClient: a raw image, or JSON if there are parameters."""

import base64
import json
from dataclasses import replace

import pytest

from tests.doubles.backend import MODEL, PNG, StubBackend
from tests.services import client_of

INPUTS = base64.b64encode(PNG).decode()


@pytest.fixture
def client():
    with client_of() as client:
        yield client


def ask(client, body: object, **params):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.post("/predict", params=params, content=content, headers={"Content-Type": "application/json"})


def test_response_has_the_hugging_face_shape(client):
    # As InferenceClient("http://gateway/predict").image_classification(image, top_k=1, function_to_apply="softmax").
    answer = ask(client, {"inputs": INPUTS, "parameters": {"function_to_apply": "softmax", "top_k": 1}})
    assert (answer.status_code, answer.json()) == (200, [{"label": "cat", "score": 0.9}])


@pytest.mark.parametrize("body", [{"inputs": INPUTS}, {"parameters": {"top_k": None}, "inputs": INPUTS}])
def test_parameters_are_optional_and_may_come_first(client, body):
    assert ask(client, body).json() == [{"label": "cat", "score": 0.9}]


def test_query_may_request_another_shape(client):
    answer = ask(client, {"inputs": INPUTS}, format="native")
    assert answer.json()["results"][0]["predictions"][0]["label"] == "cat"


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"top_k": 100_000}, "'top_k': must be at most"),
        ({"top_k": "many"}, "'top_k'"),
        ({"function_to_apply": "none"}, "ends in softmax"),
        ({"function_to_apply": "sigmoid"}, "ends in softmax"),
        ({"threshold": 0.5}, "'threshold' is not a parameter: there are top_k and function_to_apply."),
    ],
)
def test_unsupported_parameter_is_refused(client, parameters, said):
    answer = ask(client, {"inputs": INPUTS, "parameters": parameters})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_parameter")
    assert said in answer.json()["detail"]


def test_multi_label_model_accepts_only_sigmoid():
    with client_of(StubBackend(infos=[replace(MODEL, multi_label=True)])) as client:
        assert ask(client, {"inputs": INPUTS, "parameters": {"function_to_apply": "sigmoid"}}).status_code == 200
        assert ask(client, {"inputs": INPUTS, "parameters": {"function_to_apply": "softmax"}}).status_code == 422


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"inputs": "no base64!"}, "invalid_image"),
        ({"inputs": ""}, "empty_file"),
        ({"inputs": [INPUTS]}, "invalid_body"),
        ({"parameters": {}}, "invalid_body"),
        ({"inputs": INPUTS, "parameters": 1}, "invalid_body"),
        ({"inputs": INPUTS, "options": {}}, "unknown_field"),
        (b'{"inputs": "", "inputs": ""}', "invalid_body"),
        (b'{"inputs": "" "parameters": {}}', "invalid_body"),
        (b'{"inputs": ""} x', "invalid_body"),
        (b'{"inputs": "', "invalid_body"),
    ],
)
def test_invalid_body_has_its_code(client, body, code):
    answer = ask(client, body)
    assert (answer.status_code // 100, answer.json()["code"]) == (4, code)
