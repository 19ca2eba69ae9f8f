"""Large responses: limited, complete, and as the OpenAPI document describes them."""

import json
from collections import deque

import httpx
import numpy as np
import pytest
from starlette.types import Message

from gateway.api.middleware import MAX_QUERY_PARAMETERS
from gateway.api.pieces import PiecedAnswer
from gateway.api.schemas import PredictResponse
from gateway.errors import Overloaded
from gateway.limits.pool_clients import NeverEvicted
from gateway.limits.pools import response_buffer
from tests.doubles.backend import PNG, StubBackend, ranked
from tests.gateway.api.tensors import INFER, in_json
from tests.services import Client, client_of

CLASSES = 500


def wide() -> StubBackend:
    """A backend that knows many classes."""
    labels = [f"class {number}" for number in range(CLASSES)]
    return StubBackend(ranked(labels, np.linspace(1, 0, CLASSES, dtype=np.float32)), labels=labels)


def classify(client: Client, count: int, top_k: int, **headers: str) -> httpx.Response:
    files = [("f", (f"{number}.png", PNG)) for number in range(count)]
    return client.post("/predict", params={"top_k": top_k}, files=files, headers=headers)


def test_large_answer_is_complete_and_as_documented():
    with client_of(wide()) as client:
        answer = classify(client, 20, CLASSES)
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["content-length"]) == len(answer.content) > 500_000
    read = PredictResponse.model_validate_json(answer.content)
    assert [(result.index, result.filename) for result in read.results] == [(n, f"{n}.png") for n in range(20)]
    assert [len(result.predictions) for result in read.results] == [CLASSES] * 20
    assert list(answer.json()["results"][0]) == list(read.results[0].model_dump(exclude_unset=True))


async def test_full_response_buffer_is_an_error_before_the_response_begins():
    """A single large result is counted when it is sent: the client gets a 503, not half a response."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    pool = response_buffer(1_000_000)
    other, held = (pool.lease(NeverEvicted(), nbytes) for nbytes in (600_000, 1_000))
    with pytest.raises(Overloaded):
        await PiecedAnswer(deque((bytes(500_000),)), held)({}, None, send)
    assert sent == []
    for lease in (other, held):
        lease.release()


def test_answer_size_counts_existing_predictions_not_requested_ones():
    with client_of(wide(), max_predictions=2 * CLASSES) as client:
        assert classify(client, 2, 1_000).status_code == 200
        refused = classify(client, 3, 1_000)
    assert (refused.status_code, refused.json()["code"]) == (422, "answer_too_large")
    assert (refused.json()["limit"], refused.json()["value"]) == ("max_predictions", 2 * CLASSES)


def test_streamed_lines_are_not_bounded_by_max_predictions():
    with client_of(wide(), max_predictions=CLASSES) as client:
        answer = classify(client, 3, CLASSES, Accept="application/x-ndjson")
    *lines, last = map(json.loads, answer.text.splitlines())
    assert [len(line["predictions"]) for line in lines] == [CLASSES] * 3
    assert last["summary"] == {"ok": 3, "failed": 0}


@pytest.mark.parametrize(
    ("class_count", "count", "status"),
    [(0, 10, 200), (0, 11, 422), (CLASSES, 1, 200), (CLASSES, 2, 422), (400, 1, 200)],
)
def test_scores_count_a_tenth_of_a_class(class_count, count, status):
    outputs = [{"name": "PREDICTION", "parameters": {"classification": class_count}}]
    with client_of(wide(), max_predictions=CLASSES) as client:
        answer = client.post(INFER, json=in_json(*[PNG] * count, outputs=outputs))
    assert answer.status_code == status, answer.text
    if status == 200:
        assert len(answer.json()["outputs"][0]["data"]) == (class_count or CLASSES) * count


def test_query_has_a_maximum_of_parameters(client):
    most = client.post("/predict?" + "&".join(map(str, range(MAX_QUERY_PARAMETERS))), content=b"")
    more = client.post("/predict?" + "&" * MAX_QUERY_PARAMETERS, content=b"")
    assert (most.status_code, most.json()["code"]) == (422, "invalid_parameter")
    assert "more." in most.json()["detail"]
    assert len(most.content) < 2_000
    assert str(MAX_QUERY_PARAMETERS) in more.json()["detail"]


@pytest.mark.parametrize(("labels", "status"), [("cat" + "," * 3_999, 200), ("cat" + "," * 4_000, 422)])
def test_number_of_labels_is_limited(client, labels, status):
    answer = client.post("/predict", files=[("f", ("x.png", PNG))], data={"labels": labels})
    assert answer.status_code == status
