"""POST /embed: the embedding of each file, with the limits of POST /predict."""

import base64
import json
from collections.abc import Iterator

import numpy as np
import pytest

from gateway.inference.result import MAX_TOP_K
from tests.doubles.backend import PNG, VECTOR, StubBackend, with_vector
from tests.services import Client, client_of


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with client_of(StubBackend(with_vector)) as client:
        yield client


def files(*pictures: bytes) -> list[tuple[str, tuple[str, bytes]]]:
    return [("files", (f"{number}.png", picture)) for number, picture in enumerate(pictures)]


def embedded(client: Client, *pictures: bytes, **parameters) -> dict:
    answer = client.post("/embed", files=files(*pictures), params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def decoded(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<f4")


def test_each_file_has_an_embedding_or_an_error(client):
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


def test_embeddings_can_be_normalised_and_base64_encoded_and_classes_included(client):
    (one,) = embedded(client, PNG, normalize="true", encoding_format="base64")["results"]
    assert np.allclose(decoded(one["embedding"]), [0.6, 0, -0.8, 0])
    (other,) = embedded(client, PNG, encoding_format="base64")["results"]
    assert decoded(other["embedding"]).tolist() == VECTOR.tolist()
    (one,) = embedded(client, PNG, top_k=3)["results"]
    assert one["predictions"] == [{"label": "cat", "class_id": 0, "score": 0.9}]


def test_parameters_may_be_form_fields_and_images_json(client):
    form = [("normalize", (None, "true")), ("encoding_format", (None, "base64")), *files(PNG)]
    (one,) = client.post("/embed", files=form).json()["results"]
    assert np.allclose(decoded(one["embedding"]), [0.6, 0, -0.8, 0])
    body = {"images": [{"b64": base64.b64encode(PNG).decode(), "filename": "a.png"}]}
    (one,) = client.post("/embed", json=body).json()["results"]
    assert (one["filename"], one["embedding"]) == ("a.png", VECTOR.tolist())


def test_streamed_lines_name_their_model(client):
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
        ({"params": {"top_k": MAX_TOP_K + 1}}, 422, "invalid_parameter"),
        ({"params": {"model": "plain"}}, 422, "no_features"),
    ],
    ids=str,
)
def test_contradictory_parameters_are_refused(options, status, code, client):
    answer = client.post("/embed", files=files(PNG), **options)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_fields_of_predict_alone_are_unknown(client):
    unknown = client.post("/embed", files=[("labels", (None, "cat")), *files(PNG)])
    assert unknown.json()["code"] == "unknown_field"
    assert "normalize" in unknown.json()["detail"]
    foreign = client.post("/embed", json={"inputs": base64.b64encode(PNG).decode()})
    assert foreign.json()["code"] == "unknown_field"
    assert "'inputs' is not a member of the body" in foreign.json()["detail"]


def test_answer_size_counts_embedding_values(monkeypatch):
    """A separate client: the calls that are left in flight end with it."""
    # 20 predictions are 200 numbers: 50 vectors of four.
    monkeypatch.setattr("gateway.api.answers.MAX_PREDICTIONS", 20)
    with client_of(StubBackend(with_vector)) as client:
        assert len(embedded(client, *[PNG] * 19)["results"]) == 19
        many = client.post("/embed", files=files(*[PNG] * 60))
    assert (many.status_code, many.json()["code"]) == (422, "answer_too_large")
