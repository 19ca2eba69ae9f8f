"""Which results are logged, and the columns of a row."""

import hashlib
import math
from base64 import b64encode
from importlib.util import find_spec

import httpx
import pyarrow.parquet as pq
import pytest
from websockets.sync.client import connect

from gateway.app import create_app
from gateway.environment import SettingsError, load_settings
from gateway.errors import ModelUnavailable
from gateway.plugins.keys.key_file import add_key
from gateway.values.extras import install
from gateway.values.rollout import Rollout
from gateway_models.predictions import store
from gateway_models.predictions.schema import PREDICTIONS, SCHEMA_VERSION, VERSION_KEY
from gateway_models.predictions.service_log import entropy
from tests.animations import gif_of
from tests.doubles.backend import PNG, StubBackend, frame, frame_backend, scored
from tests.gateway_models.predictions.logged import (
    EVERYTHING,
    counted,
    files,
    logging_service,
    rows,
    scores_backend,
    send,
    send_many,
    writing,
)
from tests.services import stream_service, stub_service
from tests.settings import Settings


def test_row_has_the_answer_and_the_image_but_not_its_name(tmp_path):
    with logging_service(tmp_path) as client:
        files_of_form = {"files": ("secret name.png", PNG, "image/png")}
        answer = client.post("/predict", files=files_of_form, headers={"X-Request-ID": "a1"}).json()
        (row,) = rows(tmp_path, 1)
    predictions = answer["results"][0]["predictions"]
    assert row["labels"] == [each["label"] for each in predictions]
    assert row["class_ids"] == [each["class_id"] for each in predictions]
    assert row["scores"] == pytest.approx([each["score"] for each in predictions])
    assert (row["request_id"], row["index"], row["model"], row["version"]) == ("a1", 0, "ensemble_model", "1")
    assert (row["width"], row["height"], row["format"], row["bytes"]) == (4, 4, "PNG", len(PNG))
    assert row["sha256"] == hashlib.sha256(PNG).hexdigest()
    assert (row["reasons"], row["share"], row["error"], row["image"]) == (["sample"], 100, None, None)
    assert row["margin"] == pytest.approx(0.4)
    rest = (0.6, 0.2, 0.1, 0.05, 0.03, 0.02)
    assert row["entropy"] == pytest.approx(-sum(score * math.log(score) for score in rest), abs=1e-6)
    assert "secret name" not in str(row)
    assert not files(tmp_path, "images")
    (path,) = files(tmp_path)
    schema = pq.read_schema(path)
    assert schema.equals(PREDICTIONS)
    assert schema.metadata[VERSION_KEY] == str(SCHEMA_VERSION).encode()
    assert path.parent.parent == tmp_path / "rows" / "model=ensemble_model"


def test_rows_have_the_five_best_classes_whatever_the_client_selects(tmp_path):
    """A request of the Open Inference Protocol gets every score."""
    image = {"name": "IMAGE", "datatype": "BYTES", "shape": [1], "data": [b64encode(PNG).decode()]}
    with logging_service(tmp_path, scores_backend(0.1, 0.5, 0.05, 0.3, 0.04, 0.01)) as client:
        for top_k in (1, 2, 6):
            answer = send(client, path=f"/predict?top_k={top_k}&threshold=0.01").json()
            assert len(answer["results"][0]["predictions"]) == top_k
        assert client.post("/v2/models/ensemble_model/infer", json={"inputs": [image]}).status_code == 200
        found = rows(tmp_path, 4)
    assert [row["class_ids"] for row in found] == [[1, 3, 0, 2, 4]] * 4
    assert [row["margin"] for row in found] == pytest.approx([0.2] * 4)


def test_name_of_the_key_is_logged(tmp_path):
    key = add_key(tmp_path / "keys", "camera-team")
    with logging_service(tmp_path / "log", api_keys_file=tmp_path / "keys") as client:
        send(client, x_api_key=key)
        client.post("/feedback", json={"request_id": "r", "wrong": True}, headers={"X-API-Key": key})
        found = [*rows(tmp_path / "log", 1), *rows(tmp_path / "log", 1, "feedback")]
    assert [row["key"] for row in found] == ["camera-team"] * 2


NEVER = {"log_predictions_share": 0}


@pytest.mark.parametrize(
    ("settings", "reasons"),
    [
        (NEVER, None),
        (EVERYTHING, ["sample"]),
        ({**NEVER, "log_predictions_rules": "score<0.61"}, ["score"]),
        ({**NEVER, "log_predictions_rules": "score<0.6"}, None),
    ],
)
def test_share_and_rules_choose_the_results(tmp_path, settings, reasons):
    with logging_service(tmp_path, **settings) as client:
        send(client, path="/predict?model=m")
        send(client, path="/predict?top_k=0")  # 422: no result
    expected = [] if reasons is None else [("m", reasons)]
    assert [(row["model"], row["reasons"]) for row in rows(tmp_path)] == expected


def test_share_is_that_of_the_images(tmp_path):
    with logging_service(tmp_path, log_predictions_share=30) as client:
        for _ in range(5):
            send_many(client, 100)
    assert 100 < len(rows(tmp_path)) < 200  # of 500; 5 standard deviations


@pytest.mark.parametrize("wanted", [True, False])
def test_errors_are_logged_unless_they_are_switched_off(tmp_path, wanted):
    settings = {**NEVER, "log_predictions_rules": "error" if wanted else "none"}
    with logging_service(tmp_path, StubBackend(ModelUnavailable()), **settings) as client:
        send(client)
        send(client, b"no image", path="/predict?model=made-up")
    found = [(row["error"], row["reasons"], row["model"]) for row in rows(tmp_path)]
    # A model that never answered may be a name of a client's making.
    expected = [("model_unavailable", ["error"], "ensemble_model"), ("unsupported_format", ["error"], "unknown")]
    assert found == (expected if wanted else [])


def test_disagreement_of_a_shadow_is_logged(tmp_path):
    backend = scores_backend()
    known, other = backend.answer, scored(0.1, 0.2, 0.1, 0.5, 0.05, 0.05)
    backend.answer = lambda call: other if call.model_version == "2" else known(call)
    backend.rollouts["ensemble_model"] = Rollout({"1": 100}, {"2": 100})
    with logging_service(tmp_path, backend, **NEVER) as client:
        send(client)
        (row,) = rows(tmp_path, 1)
    assert (row["reasons"], row["class_ids"][0]) == (["disagreement"], 0)
    assert (row["shadow_version"], row["shadow_class_id"], row["shadow_score"]) == ("2", 3, 0.5)


def test_images_are_stored_by_their_hash(tmp_path):
    with logging_service(tmp_path, log_predictions_images=True) as client:
        for _ in range(3):
            send(client)
        send(client, b"no image")
        found = rows(tmp_path, 4)
    (path,) = files(tmp_path, "images")
    assert (path.stem, path.read_bytes()) == (hashlib.sha256(PNG).hexdigest(), PNG)
    assert {row["image"] for row in found} == {path.relative_to(tmp_path).as_posix(), None}


def test_animation_has_one_row_and_masked_copies_of_an_explanation_have_none(tmp_path):
    with logging_service(tmp_path) as client:
        assert send(client, path="/explain?masks=5").status_code == 200
        answer = client.post("/predict?frames=all", content=gif_of(3), headers={"content-type": "image/gif"})
        assert len(answer.json()["results"][0]["frames"]) == 3
    (row,) = rows(tmp_path)
    assert (row["format"], row["labels"][0], row["bytes"]) == ("GIF", "class 0", len(gif_of(3)))


def test_frames_of_a_stream_have_their_numbers(tmp_path):
    options = {"log_predictions": str(tmp_path), **EVERYTHING}
    with (
        writing(),
        stream_service(frame_backend(), **options) as (address, _),
        connect(f"ws://{address}/stream?drop=never", additional_headers={"X-Request-ID": "s1"}) as socket,
    ):
        for brightness in (0, 255):
            socket.send(frame(brightness))
            socket.recv()
    found = sorted(rows(tmp_path, 2), key=lambda row: row["index"])
    assert [(row["request_id"], row["index"], row["class_ids"][0]) for row in found] == [("s1", 0, 0), ("s1", 1, 1)]


def test_entropy_of_few_classes_and_of_several_labels():
    assert entropy([1.0], multi_label=False) == 0
    assert entropy([0.5, 0.5], multi_label=False) == pytest.approx(math.log(2))
    assert entropy([0.5, 0.25], multi_label=False) == pytest.approx(1.5 * math.log(2))  # the rest is one class
    assert entropy([0.5, 1.0], multi_label=True) == pytest.approx(math.log(2) / 2)


def test_without_a_log_calls_ask_for_nothing_more():
    backend = scores_backend()
    with counted() as found, stub_service(backend) as url:
        answer = httpx.post(f"{url}/predict", content=PNG, headers={"content-type": "image/png"}, timeout=60)
        assert answer.status_code == 200
    assert (backend.calls[0].least_classes, found) == (0, {})


@pytest.mark.parametrize(
    ("url", "missing", "hint"),
    [
        ("/var/log", "pyarrow", install("log")),
        ("s3://bucket/log", "s3fs", install("log")),
        ("gs://bucket/log", "gcsfs", "gcsfs"),
        ("http://collector/events", None, "http:// is not supported"),
    ],
)
def test_missing_package_stops_the_start(monkeypatch, url, missing, hint):
    monkeypatch.setattr(store, "find_spec", lambda name: None if name == missing else find_spec("json"))
    with pytest.raises(store.LogUnavailable, match="GATEWAY_LOG_PREDICTIONS") as refused:
        create_app(Settings(_env_file=None, log_predictions=url), StubBackend())
    assert hint in str(refused.value)


@pytest.mark.parametrize("rules", ["score<2", "score>0.5", "score<0.1,score<0.2", "margin<0.1", "errors", "error,none"])
def test_wrong_rules_stop_the_start(monkeypatch, rules):
    monkeypatch.setenv("GATEWAY_LOG_PREDICTIONS_RULES", rules)
    with pytest.raises(SettingsError, match="GATEWAY_LOG_PREDICTIONS_RULES"):
        load_settings()
