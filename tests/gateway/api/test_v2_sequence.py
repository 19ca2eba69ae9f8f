"""Sequences under /v2: what tritonclient sends as sequence_id, sequence_start and sequence_end."""

import numpy as np
import pytest

from gateway_plugins.keys.key_file import add_key
from gateway_plugins.oip.client_sequence import ID_BITS, ClientSequence, triton_id
from tests.doubles.backend import PNG, StubBackend
from tests.gateway.api.tensors import INFER, SCORES, TEXT, ask, in_json, refusal, result, scorer
from tests.keys import key_of
from tests.services import client_of


@pytest.fixture
def backend() -> StubBackend:
    return scorer()


@pytest.fixture
def client(backend):
    with client_of(backend) as client:
        yield client


def outputs(answer) -> set[str]:
    return {output["name"] for output in result(answer).get_response()["outputs"]}


def test_images_of_requests_continue_a_sequence(client, backend):
    first = result(ask(client, PNG, PNG, sequence_id=7, sequence_start=True))
    assert first.as_numpy("SEQUENCE_PREDICTION").tolist() == [(SCORES / 2).tolist()] * 2
    assert first.as_numpy("SEQUENCE_FRAMES").tolist() == [1, 2]
    assert first.as_numpy("PREDICTION").tolist() == [SCORES.tolist()] * 2
    last = result(ask(client, PNG, sequence_id=7, sequence_end=True))
    assert last.as_numpy("SEQUENCE_FRAMES").tolist() == [3]
    ends = [(True, False), (False, False), (False, False), (False, True)]  # the end is a step of its own
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


def test_sequence_in_json_has_its_best_classes(client):
    asked = in_json(
        PNG,
        parameters={"sequence_id": "camera", "sequence_start": True},
        outputs=[{"name": "SEQUENCE_PREDICTION", "parameters": {"classification": 1}}, {"name": "SEQUENCE_FRAMES"}],
    )
    (best, frames) = client.post(INFER, json=asked).json()["outputs"]
    assert best == {
        "name": "SEQUENCE_PREDICTION",
        "datatype": "BYTES",
        "shape": [1, 1],
        "data": ["0.375000:1:dog: large"],
    }
    assert frames == {"name": "SEQUENCE_FRAMES", "datatype": "INT32", "shape": [1], "data": [1]}


def test_smoothing_reaches_the_stateful_model(client, backend):
    parameters = {"sequence_id": 1, "sequence_start": True, "smoothing": "majority", "window": 5, "alpha": 0.5}
    assert client.post(INFER, json=in_json(PNG, parameters=parameters)).status_code == 200
    assert backend.steps[0].parameters == {"smoothing": "majority", "window": 5, "alpha": 0.5}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"sequence_id": -1}, "'sequence_id': must be a whole number, or a text of at most 128 characters."),
        ({"sequence_id": True}, "'sequence_id': must be"),
        ({"sequence_id": 2**64}, "'sequence_id': must be"),
        ({"sequence_id": "x" * 129}, "'sequence_id': must be"),
        ({"sequence_id": 1, "sequence_start": 1}, "'sequence_start': must be true or false."),
        ({"sequence_id": 1, "sequence_end": "yes"}, "'sequence_end': must be true or false."),
        ({"sequence_id": 1, "smoothing": "hold"}, "'smoothing': must be exponential"),
        ({"sequence_id": 1, "alpha": 0}, "'alpha': must be a number above 0"),
        ({"sequence_id": 1, "window": 10_001}, "'window': must be a whole number from 1"),
        ({"sequence_id": 1, "enter": 1.1}, "'enter': must be a number from 0"),
        ({"sequence_id": 1, "leave": -0.1}, "'leave': must be a number from 0"),
        ({"sequence_id": 1, "leave": 0.7}, "'leave': must not be above 'enter', 0.6."),
    ],
)
def test_invalid_parameters_are_refused(client, backend, parameters, message):
    status, sentence = refusal(client.post(INFER, json=in_json(PNG, parameters=parameters)))
    assert (status, sentence[: len(message)]) == (422, message)
    assert not backend.steps


@pytest.mark.parametrize("sequence_id", [2**64 - 1, "x" * 128])
def test_longest_ids_are_taken(client, sequence_id):
    parameters = {"sequence_id": sequence_id, "sequence_start": True}
    assert client.post(INFER, json=in_json(PNG, parameters=parameters)).status_code == 200


def test_sequences_of_two_keys_are_two(backend, tmp_path):
    keys = tmp_path / "keys"
    app, nightly = add_key(keys, "app"), add_key(keys, "nightly")
    with client_of(backend, api_keys_file=keys) as client:
        ask(client, PNG, headers={"X-API-Key": app}, sequence_id=7, sequence_start=True)
        answer = ask(client, PNG, headers={"X-API-Key": nightly}, sequence_id=7)
    assert answer.status_code == 409


def start(client, sequence_id: int, headers: dict[str, str] | None = None):
    return ask(client, PNG, headers=headers or {}, sequence_id=sequence_id, sequence_start=True)


def test_client_has_as_many_sequences_as_the_limit(backend):
    with client_of(backend, max_sequences=3) as client:
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


def test_idle_sequence_makes_room_for_the_next_one(backend, monkeypatch):
    monkeypatch.setattr("gateway_plugins.oip.sequences.IDLE_SECONDS", 0.0)
    with client_of(backend, max_sequences=2) as client:
        assert [start(client, sequence_id).status_code for sequence_id in (1, 2)] == [200, 200]
        assert ask(client, PNG, sequence_id=1).status_code == 200
        assert start(client, 3).status_code == 200
        ends = [step for step in backend.steps if step.end]
        assert len(ends) == 1
        assert not ends[0].scores.any()
        assert len(ends[0].scores) == len(SCORES)
        assert ask(client, PNG, sequence_id=2).status_code == 409
        assert ask(client, PNG, sequence_id=1).status_code == 200


def test_sequences_of_one_client_leave_those_of_others(backend, tmp_path):
    keys = tmp_path / "keys"
    app, nightly = (key_of(keys, name) for name in ("app", "nightly"))
    with client_of(backend, api_keys_file=keys, max_sequences=1) as client:
        assert start(client, 1, app).status_code == 200
        assert start(client, 2, app).status_code == 503
        assert start(client, 2, nightly).status_code == 200


def test_limit_of_sequences_is_listed(client):
    limits = {each["name"]: each for each in client.get("/limits").json()["limits"]}
    assert (limits["max_sequences"]["value"], limits["max_sequences"]["unit"]) == (256, "sequences")


def test_ids_of_keys_models_and_types_differ():
    ids = {
        triton_id(ClientSequence(given), model, key)
        for given in (7, "7", 8)
        for model in ("flowers", "birds")
        for key in ("", "app", "nightly")
    }
    assert len(ids) == 18
    assert all(0 < each < 2**ID_BITS for each in ids)
    assert triton_id(ClientSequence(7), "flowers", "app") == triton_id(ClientSequence(7, end=True), "flowers", "app")
