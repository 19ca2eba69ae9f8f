"""Other places for a log: a collector of CloudEvents, and a bucket; each of them away and back."""

import hashlib
import json
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote

import pytest

from gateway_predictions.forget import Forgotten, forget
from gateway_predictions.reader import LogReader
from tests.buckets import S3, s3_server
from tests.doubles.backend import PNG
from tests.doubles.http import Asked, Reply, http_server
from tests.gateway_predictions.logged import counted, failures, logging_service, outcomes, send
from tests.processes import free_port, wait_for

REQUEST, RESPONSE = "org.kubeflow.serving.inference.request", "org.kubeflow.serving.inference.response"


@dataclass
class Collector:
    """Keeps the events that it gets; answers with `status`."""

    url: str = ""
    status: int = 202
    events: list[tuple[dict[str, str], dict]] = field(default_factory=list)

    def reply(self, asked: Asked) -> Reply:
        if self.status < 300:
            headers = {name: unquote(value) for name, value in asked.headers.items()}
            self.events.append((headers, json.loads(asked.body)))
        return Reply(self.status)


@contextmanager
def collector(port: int = 0) -> Iterator[Collector]:
    server = Collector()
    with http_server(server.reply, port) as number:
        server.url = f"http://127.0.0.1:{number}/events"
        yield server


def test_collector_gets_the_events_of_kserves_logger_and_feedback():
    with collector() as server, counted() as found:
        with logging_service(server.url, log_predictions_images=True) as client:
            send(client, X_Request_ID="r1", X_Log_Fields="camera=a%22b")
            wait_for(lambda: len(server.events) == 2)
            client.post("/feedback", json={"request_id": "r1", "label": "class 2"})
            wait_for(lambda: len(server.events) == 3)
        (request, instance), (response, prediction), (headers, feedback) = server.events
    assert found == {"written": 2}
    assert headers["ce-type"] == "triton-image-gateway.feedback"
    assert (feedback["request_id"], feedback["label"], feedback["class_id"]) == ("r1", "class 2", 2)
    assert (request["ce-type"], response["ce-type"]) == (REQUEST, RESPONSE)
    assert request["ce-id"] == response["ce-id"] == "r1/0"  # by which a collector joins the two
    for headers in (request, response):
        assert headers["ce-specversion"] == "1.0"
        assert headers["content-type"] == "application/json"
        assert headers["ce-inferenceservicename"] == "ensemble_model"
        assert (headers["ce-component"], headers["ce-endpoint"]) == ("predictor", "default")
        assert json.loads(headers["ce-metadata"]) == {"camera": ['a"b']}
        assert headers["ce-time"].endswith("Z")
        assert headers["ce-source"].startswith("http://")
    (image,) = instance["instances"]
    assert b64decode(image["image_bytes"]["b64"]) == PNG
    (answer,) = prediction["predictions"]
    assert answer["labels"][0] == "class 0"
    assert prediction["reasons"] == ["sample"]


def test_collector_that_is_away_gets_the_rows_later():
    port = free_port()
    with counted() as found, logging_service(f"http://127.0.0.1:{port}/") as client:
        for _ in range(3):
            assert send(client).status_code == 200
        with collector(port) as server:
            wait_for(lambda: len(server.events) == 6)
            wait_for(lambda: outcomes()["written"] >= 3)
    assert found == {"written": 3}


@pytest.mark.parametrize(("status", "outcome"), [(400, "refused"), (503, "written")])
def test_events_are_sent_again_only_where_that_may_help(status, outcome):
    with counted() as found, collector() as server:
        server.status = status
        before = outcomes()
        with logging_service(server.url) as client:
            failed = failures()
            send(client)
            if status == 503:
                wait_for(lambda: failures() > failed)
                server.status = 200
            wait_for(lambda: outcomes()[outcome] == before[outcome] + 1)
    assert found == {outcome: 1}


@pytest.fixture
def server(tmp_path, monkeypatch) -> Iterator[S3]:
    with s3_server(tmp_path, "logs") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def test_log_in_a_bucket_is_written_read_and_forgotten(server):
    bucket = "s3://logs/predictions"
    with counted() as found, logging_service(bucket, log_predictions_images=True) as client:
        send(client, X_Request_ID="r1")
        send(client, PNG + b"another")
        client.post("/feedback", json={"request_id": "r1", "wrong": True})
        wait_for(lambda: outcomes()["written"] >= 3)
    assert found == {"written": 3}
    reader = LogReader(bucket)
    table = reader.predictions()
    assert sorted(table["request_id"].to_pylist())[-1] == "r1"
    assert [each.is_correct for each in reader.labelled()] == [False]
    row = next(row for row in table.to_pylist() if row["request_id"] == "r1")
    assert reader.image(row["image"]) == PNG
    assert forget(reader, hashlib.sha256(PNG).hexdigest()) == Forgotten(rows=1, feedback=1, images=1)
    assert reader.predictions().num_rows == 1
    assert reader.image(row["image"]) is None


def test_missing_bucket_is_retried(server):
    other = "s3://later/predictions"
    with counted() as found, logging_service(other) as client:
        failed = failures()
        send(client)
        wait_for(lambda: failures() > failed)
        (server.folder / "later").mkdir()
        wait_for(lambda: outcomes()["written"] >= 1)
        wait_for(lambda: LogReader(other).predictions().num_rows == 1)
    assert found == {"written": 1}
