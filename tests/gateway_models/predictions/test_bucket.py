"""A log in a bucket."""

from collections.abc import Iterator

import pytest

from gateway_models.predictions.forget import forget
from gateway_models.predictions.reader import LogReader
from tests.buckets import S3, s3_server
from tests.doubles.backend import PNG
from tests.gateway_models.predictions.logged import counted, failures, logging_service, outcomes, send
from tests.processes import wait_for


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
    found = reader.results()
    assert len(found) == 2
    assert [each.is_correct for each in reader.labelled()] == [False]
    row = next(row for row in found if row["request_id"] == "r1")
    assert reader.image(row["image"]) == PNG
    assert forget(reader, row["sha256"]) == (1, 1, 1)
    assert len(reader.results()) == 1
    assert reader.image(row["image"]) is None


def test_missing_bucket_is_retried(server):
    other = "s3://later/predictions"
    with counted() as found, logging_service(other) as client:
        failed = failures()
        send(client)
        wait_for(lambda: failures() > failed)
        (server.folder / "later").mkdir()
        wait_for(lambda: outcomes()["written"] >= 1)
        wait_for(lambda: len(LogReader(other).results()) == 1)
    assert found == {"written": 1}
