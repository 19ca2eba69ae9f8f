"""Errors of requests have suggestions."""

import pytest
import structlog

from gateway.ingest.multipart import MAX_READ_AHEAD_BYTES
from tests.doubles.backend import PNG
from tests.services import ROUTES, client_of


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/predict/", "'/predict'"),
        ("/v1/predict", "'/predict'"),
        ("/PREDICT", "'/predict'"),
        ("/classify", "'/predict'"),
        ("/health", "'/health/live' or '/health/ready'"),
        ("/limit", "'/limits'"),
    ],
)
def test_misspelt_path_gets_a_suggestion(client, path, meant):
    answer = client.post(path, files={"f": b"x"})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert answer.json()["detail"] == f"There is nothing at {path}; did you mean {meant}? See /docs."


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_wrong_method_is_told_the_right_one(client, method):
    answer = client.request(method, "/predict")
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
    assert answer.json()["detail"] == f"{method} is not allowed on /predict: send POST; see /docs."


def test_every_path_without_parameters_is_a_suggestion(client):
    paths = client.get("/openapi.json").json()["paths"]
    labelling = {"/label", "/label/next", "/label/overview", "/label/image"}
    undocumented = {"/", "/docs", "/openapi.json", "/client/", *labelling}
    assert {path for path in paths if "{" not in path} == set(ROUTES.literal) - undocumented


def test_admin_route_without_admin_keys_names_the_setting(client):
    assert "GATEWAY_ADMIN_KEYS_FILE" in client.post("/models/cats/unload").json()["detail"]
    assert "GATEWAY_ADMIN_KEYS_FILE" not in client.post("/models/cats/upload").json()["detail"]


@pytest.mark.parametrize("act", ["load", "unload"])
def test_triton_s_route_for_loading_names_the_gateway_s(client, act):
    answer = client.post(f"/v2/repository/models/cats/{act}", json={})
    assert answer.status_code == 404
    assert f"/models/{{name}}/{act}" in answer.json()["error"]
    assert "GATEWAY_ADMIN_KEYS_FILE" in answer.json()["error"]


@pytest.mark.parametrize(
    ("name", "hint"), [("topk", "did you mean 'top_k'?"), ("files", "a file has one, such as curl -F files=@cat.jpg.")]
)
def test_misspelt_field_gets_a_suggestion(client, name, hint):
    answer = client.post("/predict", files={name: (None, "cat.jpg")})
    assert answer.json()["code"] == "unknown_field"
    assert f"{name!r} has no file name and is not a parameter; {hint} Parameters are top_k," in answer.json()["detail"]


def test_field_after_the_files(client):
    """It is a parameter like any other while no file is being classified; what is none is called unknown, not late."""
    files = [("files", ("cat.png", PNG)), ("files", ("dog.png", PNG)), ("model", (None, "flowers"))]
    assert client.post("/predict", files=files).json()["model"]["name"] == "flowers"
    unknown = client.post("/predict", files=[("files", ("cat.png", PNG)), ("topk", (None, "2"))])
    assert (unknown.status_code, unknown.json()["code"]) == (400, "unknown_field")
    assert "mean 'top_k'?" in unknown.json()["detail"]


def test_field_after_files_that_are_being_classified():
    """A client of its own: the calls that are left in flight end with it."""
    body = [("files", ("cat.png", PNG)), ("files", ("dog.png", PNG + bytes(MAX_READ_AHEAD_BYTES)))]
    with client_of() as client:
        late = client.post("/predict", files=[*body, ("top_k", (None, "2"))])
    assert (late.status_code, late.json()["code"]) == (422, "invalid_parameter")
    assert "send it before the first file, or in the query, such as ?top_k=…." in late.json()["detail"]


@pytest.mark.parametrize(
    ("headers", "command"),
    [
        ({"content-type": "application/x-www-form-urlencoded"}, "as curl -d does: write curl -F files=@cat.jpg."),
        ({}, "requests.post(url, files={'files': file})."),
    ],
)
def test_image_as_the_whole_body_gets_the_right_command(client, headers, command):
    answer = client.post("/predict", content=PNG, headers=headers)
    assert answer.status_code == 415
    assert command in answer.json()["detail"]


def test_parameter_in_a_json_body_error_mentions_the_query(client):
    answer = client.post("/predict", json={"top_k": 2, "images": []})
    assert answer.json()["detail"] == "'top_k' goes in the query, such as ?top_k=…; the body has \"images\" alone."


def test_encoded_body_is_refused(client):
    answer = client.post("/predict", content=b"x", headers={"content-type": "image/png", "content-encoding": "gzip"})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
    assert answer.json()["title"] == "The Content-Encoding is not supported"
    answer = client.post("/predict", content=b"x", headers={"content-type": "text/csv"})
    assert answer.json()["title"] == "The Content-Type is not supported"


def test_log_event_describes_images_without_their_bytes(client):
    with structlog.testing.capture_logs() as told:
        client.post("/predict", content=b"", headers={"content-type": "image/png"})
    (event,) = [event for event in told if event["event"] == "request"]
    assert (event["images_failed"], event["errors"]) == (1, {"empty_file": 1})


@pytest.mark.parametrize(("name", "hint"), [("topk", "; did you mean 'top_k'?"), ("zzz", ".")])
def test_misspelt_parameter_gets_a_suggestion(client, name, hint):
    answer = client.post("/predict", params={name: 3}, files={"f": b"x"})
    assert answer.json()["detail"] == f"'{name}' is not a parameter of this request{hint}"
