"""The benchmarks: what they measure, count and refuse."""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import typer

from bench.candidates import Load, compare, started
from bench.http_load import HttpLoad, requests
from bench.measurement import Measurement, Series, WrongAnswer, in_turns, percentile
from bench.photos import Photo, coffee, unlike_any
from bench.remote import Remote
from bench.repository import main, set_field
from bench.services import Service, ServiceFailed, write_counts
from bench.services import started as started_service
from gateway.triton.contract import CLASSIFIER, PREPROCESSOR, read_model_config
from gateway_local.hosts import free_port
from gateway_local.memory_plan import machine_plan
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY, SHIPPED_MODELS
from tests.doubles.http import Asked, Reply, http_server
from tests.processes import wait_for
from tests.settings import Settings


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


def test_every_second_round_goes_through_the_subjects_in_reverse():
    order = []

    def subject(name: str):
        def measure(seconds: float) -> Measurement:
            order.append(name)
            return Measurement(1, seconds)

        return measure

    measured = in_turns({"a": subject("a"), "b": subject("b")}, 1.0, 3, lambda _: None)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert {name: len(series) for name, series in measured.items()} == {"a": 3, "b": 3}


@pytest.mark.parametrize(("quiet", "attempts"), [(None, 2), (0.5, 3)])
def test_disturbed_round_is_measured_again(quiet: float | None, attempts: int):
    """Other processes keep two cores busy during the first measurement."""
    others = iter([2.0, 0.1, 0.1])
    measured = in_turns(
        {"a": lambda seconds: Measurement(1, seconds, others_cpu_seconds=next(others))}, 1.0, 2, lambda _: None, quiet
    )
    assert len(measured["a"]) == 2
    assert len(list(others)) == 3 - attempts


WORKERS = 2
STOPPED = "stopped"


def service():
    """A small service with two worker processes, which answers as POST /predict does."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "tests.bench.small_service:app", "--workers", str(WORKERS)]
    return started_service([*command, "--port", str(port), "--log-level", "warning"], port, ready="/health")


def states(running: Service) -> set[str]:
    return {process.status() for process in running.tree()}


def test_all_processes_are_paused_and_resumed():
    with service() as running:
        assert len(running.tree()) > WORKERS
        running.pause()
        wait_for(lambda: states(running) == {STOPPED})
        with running.turn():
            assert STOPPED not in states(running)
        wait_for(lambda: states(running) == {STOPPED})
        processes = running.tree()
    assert not any(process.is_running() for process in processes)


@pytest.mark.long
def test_candidates_are_measured_in_turns():
    with ExitStack() as stack:
        services = {"first": service(), "second": service()}
        running = started(stack, services, lambda _: None, one_file=("second",), warm_up_seconds=0.1)
        loads = [Load("2 in flight", 2), Load("3 files in one request", 1, 3)]
        measured = compare(running, loads, 0.2, 2, lambda _: None)
        for load in loads:
            for name, series in measured[load].items():
                assert len(series) == 2, name
                assert all(each.images and each.cpu_milliseconds("gateway") for each in series), name


def test_log_of_a_service_that_ends_is_in_the_error():
    command = [sys.executable, "-c", "import sys; sys.exit('no model here')"]
    failing = started_service(command, free_port())
    with pytest.raises(ServiceFailed, match=r"(?s)ended with code 1.*no model here"):
        failing.__enter__()


def test_config_setting_is_changed_by_its_path():
    config = read_model_config(DEFAULT_MODEL_REPOSITORY / "classifier" / "config.pbtxt")
    set_field(config, ["instance_group", "count"], "7")
    set_field(config, ["dynamic_batching", "preferred_batch_size"], "3,9")
    set_field(config, ["dynamic_batching", "default_queue_policy"], "")
    set_field(config, ["parameters", "INTRA_OP_THREAD_COUNT", "string_value"], "2")
    assert config.instance_group[0].count == 7
    assert list(config.dynamic_batching.preferred_batch_size) == [3, 9]
    assert not config.dynamic_batching.HasField("default_queue_policy")
    assert config.parameters["INTRA_OP_THREAD_COUNT"].string_value == "2"
    for path in (["no_such_field"], ["instance_group", "no_such_field"], ["dynamic_batching"]):
        with pytest.raises((AttributeError, ValueError)):
            set_field(config, path, "1")


class Divider:
    def divide(self, dividend: float, divisor: float) -> float:
        return dividend / divisor


def test_object_in_another_process_returns_results_and_exceptions():
    with Remote(Divider) as divider:
        assert divider.call("divide", 6, 3) == 2
        with pytest.raises(ZeroDivisionError):
            divider.call("divide", 1, 0)
        assert divider.call("divide", 8, 2) == 4


def test_existing_folder_is_not_overwritten(tmp_path, capsys):
    with pytest.raises(typer.Exit):
        main("mobilenet-v3-small", tmp_path)
    assert f"File exists: '{tmp_path}'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_counts_are_written_for_other_checkouts(tmp_path):
    """An older checkout would start one process of each step."""
    ignored = shutil.ignore_patterns("model.*", "configs", "__pycache__")
    models = Path(shutil.copytree(SHIPPED_MODELS, tmp_path / "models", ignore=ignored))
    write_counts(models)
    chosen = machine_plan(Settings(), models)
    groups = [
        read_model_config(models / step / "config.pbtxt").instance_group[0] for step in (PREPROCESSOR, CLASSIFIER)
    ]
    assert groups[0].count == chosen.preprocessors
    assert chosen.gpus or groups[1].count == chosen.networks


def test_generated_images_are_distinct_jpegs():
    photo = coffee().data
    assert unlike_any(photo) != unlike_any(photo)
    assert unlike_any(photo).startswith(b"\xff\xd8\xff\xfe")


CAT, DOG = Photo("cat.jpg", b"meow", "cat"), Photo("dog.jpg", b"woof", "dog")


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


@pytest.mark.parametrize(
    ("fake", "files"), [(answer(["cat"]), 1), (answer(["cat", "dog", "cat"]), 3)], indirect=["fake"]
)
def test_every_answered_file_is_counted_and_every_request_timed(fake, files):
    load, asked = fake
    measurement = load.run([CAT, DOG][: (files + 1) // 2], seconds=0.2, concurrency=3, files=files)
    assert measurement.images == files * len(asked)
    assert len(measurement.latencies_seconds) == len(asked) >= 3
    assert measurement.seconds >= 0.2


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
        fake[0].run([CAT], seconds=5, concurrency=2, files=1)


def test_every_image_is_sent_in_single_and_bulk_requests():
    singles = requests([CAT, DOG], 1, "host")
    assert [call.labels for call in singles] == [["cat"], ["dog"]]
    (bulk,) = requests([CAT, DOG], 5, "host")
    assert bulk.labels == ["cat", "dog", "cat", "dog", "cat"]
    assert bulk.wire.count(b"meow") == 3
    head, _, body = bulk.wire.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
