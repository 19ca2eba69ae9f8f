"""POST /feedback, and its join with the logged results."""

import pytest

from gateway_models.predictions.reader import LogReader
from tests.gateway_models.predictions.logged import (
    EVERYTHING,
    logging_service,
    rows,
    scores_backend,
    send,
    send_many,
    writing,
)
from tests.services import client_of


@pytest.fixture
def client(tmp_path):
    """A client of a service with a log."""
    with writing(), client_of(scores_backend(), log_predictions=str(tmp_path), **EVERYTHING) as client:
        yield client


def give(client, **members):
    return client.post("/feedback", json=members)


def test_feedback_is_joined_with_the_result(tmp_path):
    with logging_service(tmp_path) as client:
        send_many(client, 3, X_Request_ID="r1")
        answer = give(client, request_id="r1", index=1, label="class 3")
        assert answer.status_code == 202
        assert answer.json() == {
            "request_id": "r1",
            "index": 1,
            "model": "ensemble_model",
            "label": "class 3",
            "class_id": 3,
        }
        give(client, request_id="r1", index=0, wrong=True)
        give(client, request_id="r1", index=2, class_id=0)
        give(client, request_id="never logged", label="class 1")
        rows(tmp_path, 4, "feedback")
        rows(tmp_path, 3)
    found = LogReader(str(tmp_path)).labelled()
    assert [(each.row["index"], each.label, each.class_id, each.is_correct) for each in found] == [
        (0, None, None, False),
        (1, "class 3", 3, False),
        (2, "class 0", 0, True),
    ]


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_feedback_is_json(client, kind):
    """A form of another site can send every other type."""
    answer = client.post("/feedback", content=b'{"request_id": "r1", "wrong": true}', headers={"Content-Type": kind})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_body")


WRONG, WITHDRAWN = {"wrong": True}, {"withdrawn": True}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([("r1", WRONG), ("r1", {"label": "class 0"})], ("r1", 0, True, False)),
        ([("r1", {"class_id": 0, "drawn": True}), ("r1", WRONG)], ("r1", None, False, True)),
        (
            [
                *(("r1", {"class_id": 3, "drawn": True}), ("r2", WRONG), ("r1", WRONG)),
                *((name, WITHDRAWN) for name in ("r2", "r1", "r3")),
            ],
            ("r1", 3, False, True),
        ),
    ],
    ids=["again", "drawn at random and reported", "withdrawn"],
)
def test_last_feedback_counts(tmp_path, given, expected):
    """After a withdrawal the previous feedback counts; a label of a random image stays one."""
    names = {name for name, _ in given}
    with logging_service(tmp_path) as client:
        for name in names:
            send(client, X_Request_ID=name)
        for number, (name, members) in enumerate(given, 1):
            assert give(client, request_id=name, **members).status_code == 202
            rows(tmp_path, number, "feedback")
        rows(tmp_path, len(names))
    (found,) = LogReader(str(tmp_path)).labelled()
    assert (found.row["request_id"], found.class_id, found.is_correct, found.is_drawn) == expected


@pytest.mark.parametrize(
    ("members", "status", "words"),
    [
        ({"request_id": "r", "label": "zebra"}, 422, "has no label 'zebra'; GET /models/NAME lists the labels."),
        ({"request_id": "r", "class_id": 5}, 202, ""),
        ({"request_id": "r", "class_id": 6}, 422, "has the classes 0 to 5"),
        ({"request_id": "r"}, 422, "exactly one of"),
        ({"request_id": "r", "label": "class 0", "wrong": True}, 422, "exactly one of"),
        ({"request_id": "r", "withdrawn": True}, 202, ""),
        ({"request_id": "r", "withdrawn": True, "wrong": True}, 422, "exactly one of"),
        ({"label": "class 0"}, 422, "'request_id': is missing"),
        ({"request_id": "x" * 129, "wrong": True}, 422, "at most 128 characters"),
        ({"request_id": "x" * 128, "wrong": True}, 202, ""),
        ({"request_id": "r", "index": -1, "wrong": True}, 422, "'index': must be at least 0"),
        ({"request_id": "r", "labels": "class 0"}, 422, "did you mean 'label'?"),
        ({"request_id": "r", "label": "class 0", "model": "none"}, 404, "no such model"),
        ([1], 400, "JSON object"),
    ],
)
def test_feedback_is_checked(client, members, status, words):
    answer = client.post("/feedback", json=members)
    assert (answer.status_code, words in answer.text) == (status, True), answer.text


def test_feedback_has_a_bound(client):
    body = b'{"request_id": "r", "wrong": true'
    fits = body + b" " * (4096 - len(body) - 1) + b"}"
    assert client.post("/feedback", content=fits, headers=JSON).status_code == 202
    answer = client.post("/feedback", content=b" " + fits, headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (413, "request_too_large")


def test_without_a_log_there_is_no_feedback(client):
    assert client.get("/models").json()["feedback"] is True
    with client_of() as other:
        answer = give(other, request_id="r", wrong=True)
        assert (answer.status_code, "GATEWAY_LOG_PREDICTIONS" in answer.json()["detail"]) == (404, True)
        assert other.get("/models").json()["feedback"] is False
