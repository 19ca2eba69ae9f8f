"""The Open Inference Protocol over HTTP: inferences, metadata and sequences below /v2."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tritonclient.http import InferRequestedOutput

from gateway.errors import InferenceFailed, InternalError, ModelNotFound, TritonUnreachable
from gateway.inference.backend import Embeddings
from gateway.plugins.oip.routes.models import MAX_INDEX_BYTES
from gateway.values.rollout import Rollout
from tests.doubles.backend import PNG, VECTOR, StubBackend, scored
from tests.gateway.api.tensors import INFER, SCORES, TEXT, ask, in_json, prediction, refusal, result, scorer
from tests.keys import key_of
from tests.services import client_of

LENGTH = "Inference-Header-Content-Length"


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
    assert "infer;dur=" in answer.headers["Server-Timing"]
    read = result(answer)
    assert read.get_response()["model_name"] == "ensemble_model"
    assert read.get_response()["model_version"] == "1"
    assert "id" not in read.get_response()
    assert read.as_numpy("PREDICTION").tolist() == [SCORES.tolist()] * 3
    assert read.as_numpy("STATUS").tolist() == [b"ok"] * 3


def test_json_request_gets_a_json_response(client):
    """The header with the length of the JSON is optional."""
    answer = client.post(INFER, json=in_json(PNG, PNG, id="7"))
    assert answer.headers["content-type"] == "application/json"
    assert LENGTH not in answer.headers
    assert answer.json() == {
        "model_name": "ensemble_model",
        "model_version": "1",
        "id": "7",
        "outputs": [
            {"name": "PREDICTION", "datatype": "FP32", "shape": [2, 2], "data": [0.25, 0.75, 0.25, 0.75]},
            {"name": "STATUS", "datatype": "BYTES", "shape": [2], "data": ["ok", "ok"]},
        ],
    }
    body = json.dumps(in_json(PNG, PNG, id="7")).encode()
    assert client.post(INFER, content=body, headers={LENGTH: str(len(body))}).json() == answer.json()


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
    # The encoding of an output takes precedence over the request's.
    outputs = [{"name": "PREDICTION"}, {"name": "STATUS", "parameters": {"binary_data": False}}]
    body = in_json(PNG, parameters={"binary_data_output": True}, outputs=outputs)
    scores, status = result(client.post(INFER, json=body)).get_response()["outputs"]
    assert "data" not in scores
    assert status["data"] == ["ok"]


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        *(
            ({"content": b"{}", "headers": {LENGTH: length}}, 400, f"{LENGTH} must be the length of the JSON in bytes;")
            for length in ("", "0", "-1", "1.5", "x", "9" * 40)
        ),
        (
            {"content": b"x", "headers": {"Content-Encoding": "gzip"}},
            415,
            "Content-Encoding: send the body uncompressed; images are compressed already.",
        ),
        ({"json": in_json(TEXT)}, 415, "not a JPEG"),
        ({"json": in_json()}, 400, "no images"),
        ({"json": in_json(PNG, outputs=[{"name": "FEATURES"}])}, 422, "gateway model add … --embeddings"),
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


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (TritonUnreachable(), 503),
        (InferenceFailed(), 502),
        (ModelNotFound("No such model."), 404),
        (RuntimeError("secret"), 500),
    ],
)
def test_service_errors_keep_their_status(fault, status):
    """An unexpected error shows no internal details."""
    with client_of(scorer(fault)) as client:
        answer = ask(client, PNG)
        assert refusal(answer) == (status, getattr(fault, "message", InternalError().message))
        assert ("Retry-After" in answer.headers) == (status == 503)


def test_version_is_that_of_the_path(client, backend):
    read = result(ask(client, PNG, path="/v2/models/ensemble_model/versions/2/infer"))
    assert read.get_response()["model_version"] == "2"
    assert backend.calls[0].model_version == "2"
    assert backend.calls[0].selection is None
    assert refusal(ask(client, PNG, path="/v2/models/ensemble_model/versions/two/infer"))[0] == 422


def test_split_sends_a_share_to_a_version_and_clients_keep_theirs():
    backend = scorer()
    backend.rollouts["flowers"] = Rollout({"1": 50, "2": 50})
    with client_of(backend) as client:

        def version(name: str, path: str = "/v2/models/flowers/infer") -> str:
            answer = ask(client, PNG, path=path, headers={"X-Client-ID": name})
            return result(answer).get_response()["model_version"]

        versions = {name: version(name) for name in map(str, range(20))}
        assert set(versions.values()) == {"1", "2"}
        assert {name: version(name) for name in versions} == versions
        # A request for a version gets it, and other models are not split.
        assert {version(name, "/v2/models/flowers/versions/1/infer") for name in versions} == {"1"}
        assert {version(name, "/v2/models/ensemble_model/infer") for name in versions} == {"1"}


def test_timeout_is_in_microseconds(client, backend):
    ask(client, PNG, timeout=25_000_000)
    assert 20 < backend.calls[0].deadline.left_seconds <= 25
    ask(client, PNG, timeout=0)
    assert 25 < backend.calls[1].deadline.left_seconds <= 30


@pytest.mark.parametrize("in_binary", [True, False], ids=["binary", "JSON"])
def test_upload_limits_apply(in_binary):
    limits = {"max_files": 2, "max_file_bytes": 200, "max_request_bytes": 2_000}
    large = b"x" * 300
    with client_of(scorer(), **limits) as client:

        def refused(*contents: bytes) -> tuple[int, str]:
            return refusal(ask(client, *contents) if in_binary else client.post(INFER, json=in_json(*contents)))

        async def unannounced():
            yield json.dumps(in_json(b"x" * 3_000)).encode()

        assert refused(PNG, PNG, PNG) == (413, "The request has more than 2 files: send them in several requests.")
        assert refused(b"x" * 3_000) == (413, "The request has more than 2,000 bytes: send fewer or smaller files.")
        assert refusal(client.post(INFER, content=unannounced())) == refused(b"x" * 3_000)
        assert refused(large) == (413, "The file has more than 200 bytes: scale the image down.")
        assert result(ask(client, PNG, large)).as_numpy("STATUS").tolist() == [b"ok", b"file_too_large"]
        assert client.post(INFER, json=in_json(large, PNG)).json()["outputs"][1]["data"] == ["file_too_large", "ok"]


def test_model_that_changes_its_classes_fails_only_later_images():
    """Another one with more classes takes its place in the middle of a request."""
    answers = (
        replace(row, model_version=version) for version, row in (("1", scored(*SCORES)), ("2", scored(0.1, 0.2, 0.7)))
    )
    with client_of(scorer(answers), max_images_in_flight=1) as client:
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


MODEL = "/v2/models/ensemble_model"


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


@pytest.mark.parametrize(("ready", "status"), [(True, 200), (False, 400)])
def test_readiness_is_a_status_without_a_body(client, backend, ready, status):
    """Another model's readiness does not depend on the default model."""
    backend.ready = ready
    backend.loaded.add("flowers")
    paths = ("/v2/health/live", "/v2/health/ready", f"{MODEL}/ready", f"{MODEL}/versions/1/ready")
    answers = [client.get(path) for path in paths]
    assert [(answer.status_code, answer.content) for answer in answers] == [(200, b""), *[(status, b"")] * 3]
    assert (client.get("/health/ready").status_code == 200) == ready
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
    """Other paths than those below /v2 have problem documents."""
    assert refusal(client.request(method, path))[0] == status
    assert client.get("/v2x").headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 200),
        (b"{}", 200),
        (b'{"ready": true}', 200),
        (b"{}" + b" " * (MAX_INDEX_BYTES - 2), 200),
        (b"{}" + b" " * (MAX_INDEX_BYTES - 1), 413),
        (b"\0", 400),
        (b"[]", 400),
        (b'{"ready": NaN}', 400),
        (b'{"ready": 1}', 400),
    ],
)
def test_body_of_the_index_is_small_and_valid(client, body, status):
    answer = client.post("/v2/repository/index", content=body)
    assert answer.status_code == status
    if status != 200:
        assert set(answer.json()) == {"error"}


def test_model_that_is_not_loaded_is_listed_with_its_reason(client, backend):
    backend.infos.append(replace(backend.infos[0], name="missing", versions=(), ready=False, reason="out of memory"))
    listed = client.post("/v2/repository/index").json()
    ready = client.post("/v2/repository/index", json={"ready": True}).json()
    assert listed[-1] == {"name": "missing", "version": "", "state": "UNAVAILABLE", "reason": "out of memory"}
    assert [each["name"] for each in ready] == ["ensemble_model"]


def outputs(answer) -> set[str]:
    return {output["name"] for output in result(answer).get_response()["outputs"]}


def test_images_of_requests_continue_a_sequence(client, backend):
    first = result(ask(client, PNG, PNG, sequence_id=7, sequence_start=True))
    assert first.as_numpy("SEQUENCE_PREDICTION").tolist() == [(SCORES / 2).tolist()] * 2
    assert first.as_numpy("SEQUENCE_FRAMES").tolist() == [1, 2]
    assert first.as_numpy("PREDICTION").tolist() == [SCORES.tolist()] * 2
    last = result(ask(client, PNG, sequence_id=7, sequence_end=True))
    assert last.as_numpy("SEQUENCE_FRAMES").tolist() == [3]
    ends = [(True, False), (False, False), (False, False), (False, True)]  # the end is a separate step
    assert [(step.start, step.end) for step in backend.steps] == ends
    assert not backend.steps[-1].scores.any()
    for unknown in (7, 8):
        assert refusal(ask(client, PNG, sequence_id=unknown)) == (409, "The sequence has no state.")


def test_request_without_a_sequence_has_no_outputs_of_one(client, backend):
    assert outputs(ask(client, PNG)) == {"PREDICTION", "STATUS"}
    assert outputs(ask(client, PNG, sequence_id=0)) == {"PREDICTION", "STATUS"}
    assert not backend.steps
    asked = in_json(PNG, outputs=[{"name": "SEQUENCE_PREDICTION"}])
    assert refusal(client.post(INFER, json=asked)) == (
        422,
        "'outputs': SEQUENCE_PREDICTION needs the parameter 'sequence_id'.",
    )


def test_failed_image_has_no_state(client):
    answer = result(ask(client, TEXT, PNG, sequence_id="camera", sequence_start=True))
    assert answer.as_numpy("STATUS").tolist() == [b"unsupported_format", b"ok"]
    assert np.isnan(answer.as_numpy("SEQUENCE_PREDICTION")[0]).all()
    assert answer.as_numpy("SEQUENCE_FRAMES").tolist() == [0, 1]


@pytest.mark.parametrize(
    ("parameters", "member"),
    [
        *(({"sequence_id": value}, "sequence_id") for value in (-1, True, 2**64, "x" * 129)),
        ({"sequence_id": 1, "sequence_start": 1}, "sequence_start"),
        ({"sequence_id": 1, "sequence_end": "yes"}, "sequence_end"),
    ],
)
def test_invalid_parameters_are_refused(client, backend, parameters, member):
    status, sentence = refusal(client.post(INFER, json=in_json(PNG, parameters=parameters)))
    assert status == 422
    assert sentence.startswith(f"'{member}': ")
    assert not backend.steps


def start(client, sequence_id: int, headers: dict[str, str] | None = None):
    return ask(client, PNG, headers=headers or {}, sequence_id=sequence_id, sequence_start=True)


def test_client_has_as_many_sequences_as_the_limit(backend, monkeypatch):
    monkeypatch.setattr("gateway.plugins.oip.settings.MAX_SEQUENCES", 3)
    with client_of(backend) as client:
        for sequence_id in (1, 2, 3):
            assert start(client, sequence_id).status_code == 200
        refused = client.post(INFER, json=in_json(PNG, parameters={"sequence_id": 4, "sequence_start": True}))
        assert refused.status_code == 503
        assert "This client has 3 sequences, the maximum" in refused.json()["error"]
        assert int(refused.headers["retry-after"]) > 0
        assert ask(client, PNG, sequence_id=3).status_code == 200
        assert ask(client, PNG, sequence_id=1, sequence_end=True).status_code == 200
        assert start(client, 4).status_code == 200
    assert len(backend.frames) == 3


def test_sequences_of_two_keys_are_two(backend, tmp_path, monkeypatch):
    """Each key has its own sequences, and as many as the limit."""
    keys = tmp_path / "keys"
    app, nightly = (key_of(keys, name) for name in ("app", "nightly"))
    monkeypatch.setattr("gateway.plugins.oip.settings.MAX_SEQUENCES", 1)
    with client_of(backend, api_keys_file=keys) as client:
        assert start(client, 1, app).status_code == 200
        assert ask(client, PNG, headers=nightly, sequence_id=1).status_code == 409
        assert start(client, 2, app).status_code == 503
        assert start(client, 2, nightly).status_code == 200
