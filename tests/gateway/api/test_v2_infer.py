"""POST /v2/models/{name}/infer: requests, responses and errors."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from prometheus_client import REGISTRY
from tritonclient.http import InferRequestedOutput

from gateway.errors import InferenceFailed, ModelNotFound, TritonUnreachable
from gateway.inference.backend import Embeddings, InferResult
from gateway_plugins.keys.key_file import add_key
from gateway_plugins.oip.documents import InferenceBody, InferenceResponse
from tests.doubles.backend import PNG, VECTOR, StubBackend, scored
from tests.gateway.api.tensors import INFER, SCORES, TEXT, ask, in_json, prediction, refusal, result, scorer
from tests.services import client_of


@pytest.fixture
def backend() -> StubBackend:
    return scorer()


@pytest.fixture
def client(backend):
    with client_of(backend) as client:
        yield client


def test_scores_and_statuses_are_tensors(client):
    answer = ask(client, PNG, PNG, PNG)
    assert answer.headers["content-type"] == "application/octet-stream"
    read = result(answer)
    assert read.get_response()["model_name"] == "ensemble_model"
    assert read.get_response()["model_version"] == "1"
    assert "id" not in read.get_response()
    assert read.as_numpy("PREDICTION").tolist() == [SCORES.tolist()] * 3
    assert read.as_numpy("STATUS").tolist() == [b"ok"] * 3


def test_json_request_gets_a_json_response(client):
    answer = client.post(INFER, json=in_json(PNG, PNG, id="7"))
    assert answer.headers["content-type"] == "application/json"
    assert "Inference-Header-Content-Length" not in answer.headers
    assert answer.json() == {
        "model_name": "ensemble_model",
        "model_version": "1",
        "id": "7",
        "outputs": [
            {"name": "PREDICTION", "datatype": "FP32", "shape": [2, 2], "data": [0.25, 0.75, 0.25, 0.75]},
            {"name": "STATUS", "datatype": "BYTES", "shape": [2], "data": ["ok", "ok"]},
        ],
    }
    assert InferenceResponse.model_validate(answer.json()).model_dump(exclude_none=True) == answer.json()


def test_openapi_document_has_the_request_schema(client):
    schema = client.get("/openapi.json").json()
    (body,) = {
        operation["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        for path, operation in schema["paths"].items()
        if path.endswith("/infer")
    }
    assert schema["components"]["schemas"][body.rpartition("/")[2]]["properties"].keys() == set(
        InferenceBody.model_fields
    )
    references = re.findall(r'"\$ref": ?"#/components/schemas/(\w+)"', json.dumps(schema))
    assert set(references) <= schema["components"]["schemas"].keys()


def test_invalid_image_fails_alone(client):
    read = result(ask(client, PNG, TEXT, b"", PNG))
    assert read.as_numpy("STATUS").tolist() == [b"ok", b"unsupported_format", b"empty_file", b"ok"]
    scores = read.as_numpy("PREDICTION")
    assert scores[[0, 3]].tolist() == [SCORES.tolist()] * 2
    assert np.isnan(scores[1:3]).all()
    told = client.post(INFER, json=in_json(PNG, TEXT)).json()["outputs"]
    assert told[0]["data"] == [0.25, 0.75, None, None]
    assert told[1]["data"] == ["ok", "unsupported_format"]


@pytest.mark.parametrize("binary", [True, False])
def test_classes_are_sorted_and_formatted_as_by_triton(client, binary):
    answer = ask(client, PNG, TEXT, outputs=[prediction(class_count=5, binary_data=binary)])
    read = result(answer)
    assert [output["name"] for output in read.get_response()["outputs"]] == ["PREDICTION"]
    assert read.get_output("PREDICTION")["datatype"] == "BYTES"
    cells = [["0.750000:1:dog: large", "0.250000:0:cat"], ["", ""]]
    expected = [[cell.encode() for cell in row] for row in cells] if binary else cells
    assert read.as_numpy("PREDICTION").tolist() == expected
    one = result(ask(client, PNG, outputs=[prediction(class_count=1)]))
    assert one.as_numpy("PREDICTION").tolist() == [[b"0.750000:1:dog: large"]]


def test_outputs_have_the_requested_order_and_encoding(client):
    asked = [InferRequestedOutput("STATUS", binary_data=False), prediction(binary_data=True)]
    read = result(ask(client, PNG, outputs=asked))
    status, scores = read.get_response()["outputs"]
    assert status == {"name": "STATUS", "datatype": "BYTES", "shape": [1], "data": ["ok"]}
    assert scores["parameters"] == {"binary_data_size": 8}
    assert read.as_numpy("PREDICTION").tolist() == [SCORES.tolist()]


def test_binary_data_output_can_be_overridden_for_one_output(client):
    outputs = [{"name": "PREDICTION"}, {"name": "STATUS", "parameters": {"binary_data": False}}]
    body = in_json(PNG, parameters={"binary_data_output": True}, outputs=outputs)
    answer = client.post(INFER, json=body)
    scores, status = result(answer).get_response()["outputs"]
    assert "data" not in scores
    assert status["data"] == ["ok"]


def test_json_may_be_sent_with_a_header_length(client):
    body = json.dumps(in_json(PNG)).encode()
    headers = {"Inference-Header-Content-Length": str(len(body))}
    assert client.post(INFER, content=body, headers=headers).status_code == 200


LENGTH = "Inference-Header-Content-Length"


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        *(
            ({"content": b"{}", "headers": {LENGTH: length}}, 400, f"{LENGTH} must be the length of the JSON in bytes.")
            for length in ("", "-1", "1.5", "x", "9" * 40)
        ),
        (
            {"content": b"x", "headers": {"Content-Encoding": "gzip"}},
            415,
            "Content-Encoding: send the body uncompressed; images are compressed already.",
        ),
        ({"json": in_json(TEXT)}, 415, "not a JPEG"),
        ({"json": in_json()}, 400, "no images"),
        ({"json": {}}, 422, "IMAGE"),
        ({"json": {"inputs": []}}, 422, "IMAGE"),
        ({"json": in_json(PNG, outputs=[{"name": "FEATURES"}])}, 422, "gateway model add … --embeddings auto"),
        ({"json": {"parameters": {"timeout": 10**12}, **in_json(PNG)}}, 422, "'timeout': must be at most 300 s."),
    ],
)
def test_refusal_has_its_status_and_words(client, options, status, words):
    found, sentence = refusal(client.post(INFER, **options))
    assert found == status
    assert words in sentence


def test_several_invalid_images_are_422_and_name_the_first(client):
    status, sentence = refusal(ask(client, *[TEXT] * 5))
    assert status == 422
    assert sentence.startswith("None of the 5 images was classified: image 0: unsupported_format, ")
    assert "image 2" in sentence
    assert "image 3" not in sentence


@pytest.mark.parametrize(
    ("fault", "status"), [(TritonUnreachable(), 503), (InferenceFailed(), 502), (ModelNotFound("No such model."), 404)]
)
def test_service_errors_keep_their_status(fault, status):
    with client_of(scorer(fault)) as client:
        answer = ask(client, PNG)
        assert refusal(answer) == (status, fault.message)
        assert ("Retry-After" in answer.headers) == (status == 503)


def test_unexpected_error_has_no_internal_details():
    with client_of(scorer(RuntimeError("secret"))) as client:
        status, sentence = refusal(ask(client, PNG))
        assert status == 500
        assert "secret" not in sentence


def test_version_is_that_of_the_path(client, backend):
    read = result(ask(client, PNG, path="/v2/models/ensemble_model/versions/2/infer"))
    assert read.get_response()["model_version"] == "2"
    assert backend.calls[0].model_version == "2"
    assert backend.calls[0].selection is None
    assert refusal(ask(client, PNG, path="/v2/models/ensemble_model/versions/two/infer"))[0] == 422


def test_split_sends_a_share_to_a_version_and_clients_keep_theirs():
    with client_of(scorer(), model_split={"flowers": {"1": 50, "2": 50}}) as client:

        def version(name: str, path: str = "/v2/models/flowers/infer") -> str:
            answer = ask(client, PNG, path=path, headers={"X-Client-ID": name})
            return result(answer).get_response()["model_version"]

        versions = {name: version(name) for name in map(str, range(20))}
        assert set(versions.values()) == {"1", "2"}
        assert {name: version(name) for name in versions} == versions
        for name, expected in versions.items():
            answer = client.post("/predict?model=flowers", files={"f": PNG}, headers={"X-Client-ID": name})
            assert answer.json()["model"]["version"] == expected
        # A request for a version gets it, and other models are not split.
        assert {version(name, "/v2/models/flowers/versions/1/infer") for name in versions} == {"1"}
        assert {version(name, "/v2/models/ensemble_model/infer") for name in versions} == {"1"}


def test_timeout_is_in_microseconds(client, backend):
    ask(client, PNG, timeout=25_000_000)
    assert 20 < backend.calls[0].deadline.left_seconds <= 25
    ask(client, PNG, timeout=0)
    assert 25 < backend.calls[1].deadline.left_seconds <= 30


def test_unknown_parameters_are_ignored(client):
    assert ask(client, PNG, priority=5, parameters={"camera": "left"}).status_code == 200


@pytest.mark.parametrize("in_binary", [True, False], ids=["binary", "JSON"])
def test_upload_limits_apply(in_binary):
    limits = {"max_files": 2, "max_file_bytes": 200, "max_request_bytes": 2_000, "max_header_bytes": 1_024}
    large = b"x" * 300
    with client_of(scorer(), **limits) as client:

        def refused(*contents: bytes) -> tuple[int, str]:
            return refusal(ask(client, *contents) if in_binary else client.post(INFER, json=in_json(*contents)))

        async def unannounced():
            yield json.dumps(in_json(b"x" * 3_000)).encode()

        assert refused(PNG, PNG, PNG) == (413, "The request has more than 2 files: send them in several requests.")
        assert refused(b"x" * 3_000) == (413, "The request has more than 2 kB: send fewer or smaller files.")
        assert refusal(client.post(INFER, content=unannounced())) == refused(b"x" * 3_000)
        assert refused(large) == (413, "The file has more than 200 bytes: scale the image down.")
        assert result(ask(client, PNG, large)).as_numpy("STATUS").tolist() == [b"ok", b"file_too_large"]
        assert client.post(INFER, json=in_json(large, PNG)).json()["outputs"][1]["data"] == ["file_too_large", "ok"]
        status, sentence = refusal(client.post(INFER, json=in_json(PNG, id="x" * 1_100)))
        assert (status, "1 KiB beside its images" in sentence) == (431, True)


def test_requests_and_stages_are_measured(client):
    def measured() -> float:
        return REGISTRY.get_sample_value("gateway_request_duration_seconds_count", {"stage": "infer"}) or 0.0

    before = measured()
    answer = ask(client, PNG)
    assert "infer;dur=" in answer.headers["Server-Timing"]
    assert measured() == before + 1
    counted = 'gateway_requests_total{code="",route="/v2/models/{name}/infer",status="200"}'
    assert counted in client.get("/metrics").text


def test_missing_key_uses_the_protocols_format(tmp_path):
    key = add_key(tmp_path / "keys", "someone")
    with client_of(scorer(), api_keys_file=tmp_path / "keys") as client:
        answer = ask(client, PNG)
        assert refusal(answer)[0] == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert ask(client, PNG, headers={"X-API-Key": key}).status_code == 200
        assert client.get("/v2/health/ready").status_code == 200
        assert refusal(client.get("/v2"))[0] == 401


def test_model_that_changes_its_classes_fails_only_later_images():
    """Another one with more classes takes its place in the middle of a request."""
    answers = (
        InferResult("m", version, (row,)) for version, row in (("1", scored(*SCORES)), ("2", scored(0.1, 0.2, 0.7)))
    )
    with client_of(scorer(answers), batch_max_images=1, request_max_calls=1) as client:
        read = result(ask(client, PNG, PNG))
    assert read.get_response()["model_version"] == "1"
    assert read.as_numpy("STATUS").tolist() == [b"ok", b"model_unavailable"]
    assert np.isnan(read.as_numpy("PREDICTION")[1]).all()


def test_embeddings_are_a_tensor_with_nan_for_failed_images():
    backend = scorer(replace(scored(*SCORES), embedding=VECTOR))
    with client_of(backend) as client:
        read = result(ask(client, PNG, TEXT))
        alone = client.post(INFER, json=in_json(PNG, outputs=[{"name": "FEATURES"}])).json()["outputs"]
    assert read.as_numpy("FEATURES")[0].tolist() == VECTOR.tolist()
    assert np.isnan(read.as_numpy("FEATURES")[1]).all()
    assert {call.embeddings for call in backend.calls} == {Embeddings.IF_ANY}
    assert alone == [{"name": "FEATURES", "datatype": "FP32", "shape": [1, 4], "data": VECTOR.tolist()}]


def test_client_may_ask_for_problem_documents(client):
    answer = client.post(INFER, json=in_json(TEXT), headers={"Accept": "application/problem+json, application/json"})
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_format")
