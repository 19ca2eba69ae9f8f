"""GET /v2 and below."""

import pytest

from gateway import __version__
from gateway.errors import ModelNotFound, TritonUnreachable
from tests.doubles.backend import StubBackend
from tests.gateway.api.tensors import refusal
from tests.services import client_of

MODEL = "/v2/models/ensemble_model"
READINESS = ["/v2/health/ready", f"{MODEL}/ready", f"{MODEL}/versions/1/ready"]


def unready() -> StubBackend:
    """A backend whose Triton has not answered lately."""
    backend = StubBackend()
    backend.ready = False
    return backend


def test_server_metadata(client):
    assert client.get("/v2").json() == {
        "name": "triton-image-gateway",
        "version": __version__,
        "extensions": ["binary_tensor_data", "classification", "sequence", "model_configuration", "statistics"],
    }


@pytest.mark.parametrize("path", [MODEL, f"{MODEL}/versions/1"])
def test_model_metadata_lists_inputs_and_outputs(client, path):
    assert client.get(path).json() == {
        "name": "ensemble_model",
        "versions": ["1"],
        "platform": "ensemble",
        "inputs": [{"name": "IMAGE", "datatype": "BYTES", "shape": [-1]}],
        "outputs": [
            {"name": "PREDICTION", "datatype": "FP32", "shape": [-1, 2]},
            {"name": "STATUS", "datatype": "BYTES", "shape": [-1]},
        ],
    }


@pytest.mark.parametrize(("backend", "status"), [(StubBackend, 200), (unready, 400)])
def test_readiness_is_a_status_without_a_body(backend, status):
    with client_of(backend()) as client:
        answers = [client.get(path) for path in ("/v2/health/live", *READINESS)]
        assert (client.get("/health/ready").status_code == 200) == (status == 200)
    assert [(answer.status_code, answer.content) for answer in answers] == [(200, b""), *[(status, b"")] * 3]


def test_readiness_of_a_model_is_independent_of_the_default_model():
    backend = unready()
    backend.loaded.add("flowers")
    with client_of(backend) as client:
        assert client.get("/v2/models/flowers/ready").status_code == 200


@pytest.mark.parametrize("end", ["", "/ready", "/config", "/stats"])
def test_unknown_model_or_version_is_404_in_the_protocols_format(client, end):
    assert refusal(client.get(f"/v2/models/nothing{end}")) == (404, ModelNotFound().message)
    status, sentence = refusal(client.get(f"{MODEL}/versions/7{end}"))
    assert (status, sentence) == (404, "There is no version 7 of 'ensemble_model'; it has 1.")
    assert refusal(client.get(f"{MODEL}/versions/one{end}"))[0] == 422


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/nothing", 404),
        ("GET", "/v2/models", 404),
        ("GET", "/v2/models/a/b/c", 404),
        ("POST", "/v2", 405),
        ("GET", f"{MODEL}/infer", 405),
        ("POST", MODEL, 405),
    ],
)
def test_unknown_paths_and_methods_use_the_protocols_format(client, method, path, status):
    assert refusal(client.request(method, path))[0] == status


def test_paths_outside_the_protocol_get_problem_documents(client):
    assert client.get("/v2x").headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("end", ["", "/ready"])
def test_unreachable_triton_uses_the_protocols_format(monkeypatch, end):
    async def model(self, name):
        raise TritonUnreachable

    monkeypatch.setattr(StubBackend, "model", model)
    with client_of() as client:
        answer = client.get(MODEL + end)
        assert refusal(answer) == (503, TritonUnreachable().message)
        assert answer.headers["Retry-After"] == "5"
