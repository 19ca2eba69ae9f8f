"""What is wrong with a request is told together with what was probably meant."""

from collections.abc import Iterator

import pytest
import structlog

from gateway.app import ROUTES
from tests.gateway.api.stub import Client, client_of


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with client_of() as client:
        yield client


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/predict/", "'/predict'"),
        ("/v1/predict", "'/predict'"),
        ("/PREDICT", "'/predict'"),
        ("/health", "'/health/live' or '/health/ready'"),
        ("/limit", "'/limits'"),
    ],
)
def test_a_misspelt_path_is_answered_with_the_one_that_was_meant(client, path, meant):
    answer = client.post(path, files={"f": b"x"})
    assert answer.status_code == 404
    assert answer.json()["detail"] == f"There is nothing at {path}; did you mean {meant}? See /docs."


def test_a_misspelt_path_is_compared_with_every_path_without_a_name_in_it(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert {path for path in paths if "{" not in path} == set(ROUTES.literal) - {"/", "/docs", "/openapi.json"}


def test_who_asks_for_what_only_admins_have_is_told_the_setting(client):
    assert "GATEWAY_ADMIN_KEYS_FILE" in client.post("/models/cats/unload").json()["detail"]
    assert client.post("/models/cats/upload").json()["detail"] == "There is nothing at /models/cats/upload; see /docs."


@pytest.mark.parametrize(
    ("name", "hint"), [("topk", "did you mean 'top_k'?"), ("files", "a file has one, such as curl -F files=@cat.jpg.")]
)
def test_a_field_that_is_neither_is_answered_with_what_was_meant(client, name, hint):
    answer = client.post("/predict", files={name: (None, "cat.jpg")})
    assert answer.json()["code"] == "unknown_field"
    assert f"{name!r} has no file name and is not a parameter; {hint} Parameters are top_k," in answer.json()["detail"]


def test_a_parameter_in_a_json_body_is_sent_to_the_query(client):
    answer = client.post("/predict", json={"top_k": 2, "images": []})
    assert answer.json()["detail"] == "'top_k' goes in the query, such as ?top_k=…; the body has \"images\" alone."


def test_a_body_in_an_encoding_is_refused(client):
    answer = client.post("/predict", content=b"x", headers={"content-type": "image/png", "content-encoding": "gzip"})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
    assert answer.json()["title"] == "The Content-Encoding is not supported"
    answer = client.post("/predict", content=b"x", headers={"content-type": "text/csv"})
    assert answer.json()["title"] == "The Content-Type is not supported"


def test_the_log_tells_of_an_image_without_a_byte(client):
    with structlog.testing.capture_logs() as told:
        client.post("/predict", content=b"", headers={"content-type": "image/png"})
    (event,) = [event for event in told if event["event"] == "request"]
    assert (event["images_failed"], event["errors"]) == (1, {"empty_file": 1})
