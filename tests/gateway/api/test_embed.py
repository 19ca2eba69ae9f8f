"""POST /embed: the vector of each file, in the shapes that clients know, bounded as POST /predict is."""

import base64
import json
from collections.abc import Iterator

import numpy as np
import pytest

from tests.gateway.api.stub import PNG, VECTOR, Client, VectorBackend, client_of


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with client_of(VectorBackend(), max_predictions=20, max_top_k=10) as client:
        yield client


def files(*pictures: bytes) -> list[tuple[str, tuple[str, bytes]]]:
    return [("files", (f"{number}.png", picture)) for number, picture in enumerate(pictures)]


def embedded(client: Client, *pictures: bytes, **parameters) -> dict:
    answer = client.post("/embed", files=files(*pictures), params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def decoded(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<f4")


def test_each_file_has_its_vector_or_its_own_error(client):
    answer = embedded(client, PNG, b"no picture", PNG)
    assert answer["model"] == {"name": "ensemble_model", "version": "1"}
    assert answer["summary"] == {"ok": 2, "failed": 1}
    good, bad, _ = answer["results"]
    assert good == {
        "index": 0,
        "filename": "0.png",
        "status": "ok",
        "width": 4,
        "height": 4,
        "embedding": VECTOR.tolist(),
        "predictions": [],
        "error": None,
    }
    assert (bad["embedding"], bad["error"]["code"]) == (None, "unsupported_format")


def test_vectors_come_normalised_and_in_base64_where_that_is_asked_for(client):
    (one,) = embedded(client, PNG, normalize="true", encoding_format="base64")["results"]
    assert np.allclose(decoded(one["embedding"]), [0.6, 0, -0.8, 0])
    (other,) = embedded(client, PNG, encoding_format="base64")["results"]
    assert decoded(other["embedding"]).tolist() == VECTOR.tolist()


def test_classes_come_along_where_they_are_asked_for(client):
    (one,) = embedded(client, PNG, top_k=3)["results"]
    assert one["predictions"] == [{"label": "cat", "class_id": 0, "score": 0.9}]


def test_clients_of_openai_read_its_shape(client):
    answer = embedded(client, PNG, b"no picture", format="openai")
    assert answer["object"] == "list"
    assert answer["model"] == "ensemble_model"
    assert answer["usage"] == {"prompt_tokens": 0, "total_tokens": 0}
    first, second = answer["data"]
    assert first == {"object": "embedding", "index": 0, "embedding": VECTOR.tolist()}
    assert second["embedding"] is None
    assert second["error"]["code"] == "unsupported_format"


def test_a_lone_file_without_a_vector_is_a_problem_in_openais_shape(client):
    answer = client.post("/embed", files=files(b"no picture"), params={"format": "openai"})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_format")


def test_parameters_may_stand_in_the_form_and_images_in_json(client):
    form = [("normalize", (None, "true")), ("encoding_format", (None, "base64")), *files(PNG)]
    (one,) = client.post("/embed", files=form).json()["results"]
    assert np.allclose(decoded(one["embedding"]), [0.6, 0, -0.8, 0])
    body = {"images": [{"b64": base64.b64encode(PNG).decode(), "filename": "a.png"}]}
    (one,) = client.post("/embed", json=body).json()["results"]
    assert (one["filename"], one["embedding"]) == ("a.png", VECTOR.tolist())


def test_lines_come_with_the_model_of_each(client):
    answer = client.post("/embed", files=files(PNG, b"no picture"), headers={"Accept": "application/x-ndjson"})
    *lines, summary = map(json.loads, answer.text.splitlines())
    by_index = {line["index"]: line for line in lines}
    assert by_index[0]["embedding"] == VECTOR.tolist()
    assert by_index[0]["model"] == {"name": "ensemble_model", "version": "1"}
    assert by_index[1]["error"]["code"] == "unsupported_format"
    assert summary["summary"] == {"ok": 1, "failed": 1}


@pytest.mark.parametrize(
    ("options", "status", "code"),
    [
        ({"params": {"threshold": 0.5}}, 422, "invalid_parameter"),
        ({"params": {"encoding_format": "int8"}}, 422, "invalid_parameter"),
        ({"params": {"top_k": 11}}, 422, "invalid_parameter"),
        ({"params": {"format": "openai"}, "headers": {"Accept": "application/x-ndjson"}}, 422, "invalid_parameter"),
        ({"params": {"model": "plain"}}, 422, "no_features"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(options, status, code, client):
    answer = client.post("/embed", files=files(PNG), **options)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_a_form_field_and_a_json_member_of_predict_alone_are_unknown(client):
    unknown = client.post("/embed", files=[("labels", (None, "cat")), *files(PNG)])
    assert unknown.json()["code"] == "unknown_field"
    assert "normalize" in unknown.json()["detail"]
    foreign = client.post("/embed", json={"inputs": base64.b64encode(PNG).decode()})
    assert foreign.json()["code"] == "unknown_field"
    assert "POST /predict" in foreign.json()["detail"]


def test_an_answer_is_bounded_by_its_numbers_as_well(client):
    # 20 predictions are 200 numbers: 50 vectors of four.
    assert len(embedded(client, *[PNG] * 19)["results"]) == 19
    many = client.post("/embed", files=files(*[PNG] * 60))
    assert (many.status_code, many.json()["code"]) == (422, "answer_too_large")


def test_a_fault_of_the_service_is_a_problem_document():
    with client_of(VectorBackend(RuntimeError("inside"))) as client:
        answer = client.post("/embed", files=files(PNG))
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert "inside" not in answer.text


def test_a_misspelt_parameter_is_told_the_one_of_this_path(client):
    def refused(name: str) -> str:
        answer = client.post("/embed", files=files(PNG), params={name: 2})
        assert answer.status_code == 422
        return answer.json()["detail"]

    assert refused("normalise") == "'normalise' is not a parameter of this request; did you mean 'normalize'?"
    assert refused("frames") == "'frames' is not a parameter of this request."
