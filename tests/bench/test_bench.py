"""The benchmarks: measurements, counts and refusals."""

import json
from collections.abc import Iterator

import pytest

from bench.http_load import HttpLoad
from bench.measurement import Measurement, Series, WrongAnswer, percentile
from bench.photos import Photo
from tests.doubles.http import Asked, Reply, http_server


def rounds(*rates: float) -> Series:
    return Series(Measurement(int(rate * 2), 2.0, [0.1], {"load": 1.0}, 0.5) for rate in rates)


def test_ratio_compares_measurements_of_the_same_round():
    """The second and third rounds ran on a machine half as fast."""
    ratio = rounds(50, 25, 30).ratio(rounds(100, 50, 50))
    assert (ratio.median, ratio.least, ratio.most) == (0.5, 0.5, 0.6)
    assert str(ratio) == "0.50 (0.50 – 0.60)"


def test_processor_time_is_reported_per_image_and_percentiles_by_the_nearest_rank():
    (measurement,) = rounds(100)
    assert measurement.cpu_milliseconds("load") == measurement.cpu_milliseconds() == 5.0
    assert measurement.cpu_milliseconds("gateway") == 0.0
    assert measurement.others_cores == 0.25
    values = [float(value) for value in range(1, 101)]
    assert (percentile(values, 50), percentile(values, 99), percentile([7.0], 99)) == (50, 99, 7)


CAT = Photo("cat.jpg", b"meow", "cat")


def answer(labels: list[str], status: int = 200) -> Reply:
    results = [{"status": "ok", "predictions": [{"label": label}, {"label": "other"}]} for label in labels]
    return Reply(status, json.dumps({"results": results}).encode())


FAILED = b'{"results": [{"status": "error", "predictions": [], "error": {"code": "empty_file"}}]}'


@pytest.fixture
def fake(request: pytest.FixtureRequest) -> Iterator[tuple[HttpLoad, list[Asked]]]:
    """A load for a service that answers every request alike, and the requests that it got."""
    asked: list[Asked] = []

    def reply(each: Asked) -> Reply:
        asked.append(each)
        return request.param

    with http_server(reply) as port:
        yield HttpLoad(f"http://127.0.0.1:{port}"), asked


@pytest.mark.parametrize(("fake", "files"), [(answer(["cat"]), 1), (answer(["cat"] * 3), 3)], indirect=["fake"])
def test_every_answered_file_is_counted_and_every_request_timed(fake, files):
    load, asked = fake
    measurement = load.run(CAT, seconds=0.2, concurrency=3, files=files)
    assert measurement.images == files * len(asked)
    assert len(measurement.latencies_seconds) == len(asked) >= 3
    assert measurement.seconds >= 0.2
    assert {each.body.count(b"meow") for each in asked} == {files}


@pytest.mark.parametrize(
    ("fake", "words"),
    [
        (answer(["dog"]), "expected 'cat', got 'dog'"),
        (answer(["cat"], 503), "status 503"),
        (answer([]), "0 results for 1 files"),
        (Reply(200, FAILED), "empty_file"),
        (Reply(200, b" " * 30, {"Content-Length": None}), "without a Content-Length"),
    ],
    indirect=["fake"],
)
def test_wrong_results_give_no_throughput(fake, words):
    with pytest.raises(WrongAnswer, match=words):
        fake[0].run(CAT, seconds=5, concurrency=2, files=1)
