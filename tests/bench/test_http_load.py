import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from bench.http_load import HttpLoad, check, requests
from bench.measurement import WrongAnswer
from bench.photos import Photo
from tests.doubles.http import Asked, Reply, http_server

CAT, DOG = Photo("cat.jpg", b"meow", "cat"), Photo("dog.jpg", b"woof", "dog")


def answer(labels: list[str], status: int = 200) -> Reply:
    results = [{"status": "ok", "predictions": [{"label": label}, {"label": "other"}]} for label in labels]
    return Reply(status, json.dumps({"results": results}).encode())


@dataclass
class FakeGateway:
    """Answers every request alike."""

    url: str = ""
    served: int = 0


@pytest.fixture
def gateway(request: pytest.FixtureRequest) -> Iterator[FakeGateway]:
    fake = FakeGateway()

    def reply(_: Asked) -> Reply:
        fake.served += 1
        return request.param

    with http_server(reply) as port:
        fake.url = f"http://127.0.0.1:{port}"
        yield fake


@pytest.mark.parametrize("gateway", [answer(["cat"])], indirect=True)
def test_every_answered_request_is_counted_with_its_time(gateway):
    measurement = HttpLoad(gateway.url).run([CAT], seconds=0.2, concurrency=3, files=1)
    assert measurement.images == len(measurement.latencies_seconds) == gateway.served
    assert measurement.images >= 3
    assert measurement.seconds >= 0.2


@pytest.mark.parametrize("gateway", [answer(["cat", "dog", "cat"])], indirect=True)
def test_request_with_several_files_counts_each(gateway):
    measurement = HttpLoad(gateway.url).run([CAT, DOG], seconds=0.05, concurrency=1, files=3)
    assert measurement.images == 3 * gateway.served


@pytest.mark.parametrize(
    ("gateway", "words"),
    [
        (answer(["dog"]), "expected 'cat', got 'dog'"),
        (answer(["cat"], 503), "status 503"),
        (answer([]), "0 results for 1 files"),
        (Reply(200, b" " * 30, {"Content-Length": None}), "without a Content-Length"),
    ],
    indirect=["gateway"],
)
def test_wrong_results_give_no_throughput(gateway, words):
    with pytest.raises(WrongAnswer, match=words):
        HttpLoad(gateway.url).run([CAT], seconds=5, concurrency=2, files=1)


def test_every_image_is_sent_in_single_and_bulk_requests():
    singles = requests([CAT, DOG], 1, "host")
    assert [call.labels for call in singles] == [["cat"], ["dog"]]
    (bulk,) = requests([CAT, DOG], 5, "host")
    assert bulk.labels == ["cat", "dog", "cat", "dog", "cat"]
    assert bulk.wire.count(b"meow") == 3
    head, _, body = bulk.wire.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head


def test_file_with_an_error_is_a_wrong_result():
    body = json.dumps({"results": [{"status": "error", "predictions": [], "error": {"code": "empty_file"}}]}).encode()
    assert "empty_file" in check(200, body, ["cat"])
