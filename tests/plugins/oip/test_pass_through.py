"""Models of Triton that classify no images, under /v2 by an allow-list: with a real Triton."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from gateway_local.server import EmbeddedTriton
from tests.processes import running_gateway

INPUT = {"name": "input__0", "datatype": "FP32", "shape": [2, 3, 8, 8]}
IMAGES = np.zeros((2, 3, 8, 8), np.float32)
INFER = "/v2/models/classifier/infer"
HEADER_LENGTH = "Inference-Header-Content-Length"


@pytest.fixture(scope="module")
def client(light_triton: EmbeddedTriton, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    log: Path = tmp_path_factory.mktemp("pass") / "log"
    with (
        running_gateway(log, triton_url=light_triton.url, v2_models="classifier,missing") as running,
        running.client() as http,
    ):
        yield http
        assert not running.faults()


def body(**changes: object) -> dict[str, object]:
    return {"inputs": [{**INPUT, "data": IMAGES.tolist(), **changes}]}


def test_json_becomes_tensors_and_back(client):
    answer = client.post(INFER, json={"id": "7", **body()})
    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert (document["id"], document["model_name"], document["model_version"]) == ("7", "classifier", "1")
    (output,) = document["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("output__0", "FP32", [2, 1000])
    assert np.array(output["data"]).reshape(2, 1000).argmax(1).tolist() == [285, 285]


def test_binary_data_is_passed_on(client):
    parameters = {"binary_data_size": IMAGES.nbytes}
    head = json.dumps(
        {"inputs": [{**INPUT, "parameters": parameters}], "parameters": {"binary_data_output": True}}
    ).encode()
    answer = client.post(
        "/v2/models/classifier/versions/1/infer",
        content=head + IMAGES.tobytes(),
        headers={HEADER_LENGTH: str(len(head))},
    )
    assert answer.status_code == 200, answer.text
    end = int(answer.headers[HEADER_LENGTH])
    (output,) = json.loads(answer.content[:end])["outputs"]
    scores = np.frombuffer(answer.content[end:], np.float32).reshape(output["shape"])
    assert output["parameters"]["binary_data_size"] == scores.nbytes
    assert scores.argmax(1).tolist() == [285, 285]


def test_classification_returns_labels(client):
    outputs = [{"name": "output__0", "parameters": {"classification": 1}}]
    answer = client.post(INFER, json={**body(), "outputs": outputs})
    (output,) = answer.json()["outputs"]
    assert (output["datatype"], output["shape"]) == ("BYTES", [2, 1])
    assert output["data"] == ["1.000000:285:Egyptian cat"] * 2


def test_metadata_and_readiness_are_tritons(client):
    document = client.get("/v2/models/classifier").json()
    assert document["inputs"] == [{"name": "input__0", "datatype": "FP32", "shape": [-1, 3, 8, 8]}]
    assert document["versions"] == ["1"]
    assert client.get("/v2/models/classifier/ready").status_code == 200
    assert client.get("/v2/models/missing/ready").status_code in {400, 404}
    assert client.get("/v2/models/missing").status_code == 404


def test_models_beyond_the_list_are_not_reached(client):
    assert client.post("/v2/models/preprocessor/infer", json=body()).status_code == 400  # it has no IMAGE
    assert client.get("/v2/models/preprocessor").status_code == 404
    answer = client.get("/v2/models/ensemble_model").json()
    assert answer["inputs"][0]["name"] == "IMAGE"


def test_refusal_of_triton_is_the_clients_error(client):
    answer = client.post(INFER, json=body(name="other"))
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"].startswith("Triton refuses the request: ")
