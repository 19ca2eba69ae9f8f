"""Which results are exported, how labels come back, and the accuracy by them."""

import csv
import hashlib
import json
from datetime import UTC, datetime, timedelta
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree as Xml

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.dataset import dataset

from gateway.inference.backend import Call, Row
from gateway_predictions.accuracy import accuracy, calibrations
from gateway_predictions.export import ExportSelection, export
from gateway_predictions.reader import Labelled, LogReader
from gateway_predictions.requirements import LogUnavailable
from gateway_predictions.selection import k_center, most_uncertain
from gateway_predictions.shares import wilson
from tests.asking import encode
from tests.commands import gateway, refusal
from tests.doubles.backend import StubBackend, ranked
from tests.gateway_predictions.logged import NOON, a_row, logging_service, rows, scores_backend, send, write_file


def table_of(folder) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "labels.csv").read_text().splitlines()))


def numbers(found: list[dict]) -> list[int]:
    return [int(each["sha256"], 16) for each in found]


@pytest.mark.parametrize("by", ["margin", "entropy", "score"])
def test_most_uncertain_come_first_and_each_image_once(by):
    known = [a_row(number, margin=number / 10) for number in (5, 1, 9, 3)]
    assert numbers(most_uncertain([*known, a_row(1, 0.2)], 2, by)) == [1, 3]


def test_embeddings_spread_the_uncertain_images():
    """Each of four groups of near-duplicates is chosen once, although one group is the most uncertain."""
    rng = np.random.default_rng(0)
    groups = np.eye(4, dtype=np.float32)
    known = [
        a_row(
            10 * group + copy,
            margin=0.01 * group + 0.001 * copy,
            embedding=(groups[group] + rng.normal(0, 0.01, 4)).tolist(),
        )
        for group in range(4)
        for copy in range(4)
    ]
    assert {number // 10 for number in numbers(most_uncertain(known, 4, "margin"))} == {0, 1, 2, 3}
    assert {number // 10 for number in numbers(most_uncertain(known, 4, "margin", diverse=False))} == {0}


def test_k_center_is_within_twice_the_best_radius():
    rng = np.random.default_rng(1)
    points = rng.normal(size=(40, 3)).astype(np.float32)
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    distance = np.linalg.norm(unit[:, None] - unit[None], axis=2)
    chosen = k_center(points, 3)
    assert len(set(chosen)) == 3
    best = min(distance[:, list(each)].min(axis=1).max() for each in combinations(range(40), 3))
    assert distance[:, chosen].min(axis=1).max() <= 2 * best + 1e-6


def test_k_center_of_few_or_equal_points():
    assert k_center(np.zeros((2, 3), np.float32), 5) == [0, 1]
    chosen = k_center(np.ones((4, 3), np.float32), 3)
    assert len(chosen) == len(set(chosen))


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"),
    [(0, 0, 0, 1), (0, 10, 0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1), (81, 263, 0.2553, 0.3662)],
)
def test_wilson_interval(hits, count, low, high):
    """The last one is the example of Newcombe 1998, method 3."""
    assert wilson(hits, count) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_accuracy_by_day_version_and_class():
    known = [
        Labelled(a_row(1), "cat", 0),
        Labelled(a_row(2), "dog", 1),
        Labelled(a_row(3, time=NOON + timedelta(days=1), version="2"), "cat", 0),
        Labelled(a_row(4, reasons=["margin"]), None, None),
    ]
    found = accuracy(known)
    assert (found.all.hits, found.all.count) == (2, 4)
    assert (found.sampled.hits, found.sampled.count) == (2, 3)
    assert (found.drawn.hits, found.drawn.count) == (0, 0)
    assert {day: (each.hits, each.count) for day, each in found.by_day.items()} == {
        "2026-01-01": (1, 3),
        "2026-01-02": (1, 1),
    }
    assert {name: (each.hits, each.count) for name, each in found.by_version.items()} == {"1": (1, 3), "2": (1, 1)}
    cat, dog = found.classes
    assert (str(cat.recall)[:7], cat.precision.hits, cat.precision.count) == ("100.0 %", 2, 4)
    assert (dog.label, dog.recall.hits, dog.recall.count, str(dog.precision)) == ("dog", 0, 1, "-")


def reported(rng: np.random.Generator) -> list[Labelled]:
    """Labels of 1,000 images, of which a model knows 80 %: the queue draws a third, users report mainly mistakes."""
    known = []
    for number in range(1_000):
        is_right, is_drawn = rng.random() < 0.8, rng.random() < 1 / 3
        if is_drawn or not is_right or rng.random() < 0.1:
            known.append(Labelled(a_row(number), "cat", 0 if is_right else 1, is_drawn))
    return known


def test_accuracy_on_images_drawn_at_random_has_no_preference():
    rng = np.random.default_rng(3)
    found = [accuracy(reported(rng)) for _ in range(100)]
    intervals = [each.drawn.interval for each in found]
    assert np.mean([low < 0.8 < high for low, high in intervals]) > 0.88
    assert max(each.sampled.interval[1] for each in found) < 0.75
    known = reported(rng)
    rules = [Labelled(a_row(number, reasons=["margin"]), None, None, is_drawn=True) for number in range(100)]
    assert accuracy([*known, *rules]).drawn == accuracy(known).drawn


def test_calibration_on_images_drawn_at_random_is_the_services():
    """Scores of 0.9 that are right in 60 % of the cases; users report wrong ones above all."""
    rng = np.random.default_rng(5)
    known = []
    for number in range(2_000):
        is_right, is_drawn = rng.random() < 0.6, rng.random() < 1 / 4
        if is_drawn or not is_right:
            known.append(Labelled(a_row(number, margin=0.8), "cat", 0 if is_right else 1, is_drawn))
    found = calibrations(known)
    assert found["drawn"].error.low < 0.3 < found["drawn"].error.high
    assert found["all"].error.low > 0.4
    (only,) = found["drawn"].bins
    assert (only.score, only.right) == (pytest.approx(0.9), pytest.approx(0.6, abs=0.05))
    assert found["drawn"].brier.value == pytest.approx(0.6 * 0.01 + 0.4 * 0.81, abs=0.05)
    assert calibrations([Labelled(a_row(1), "cat", 0)]).keys() == {"all"}
    assert calibrations([]) == {}


def by_last_byte(call: Call) -> Row:
    """The brighter the first image, the more certain it is of class 0."""
    best = call.batch.images[0][-1] / 255
    return ranked(["class 0", "class 1"], [best, 1 - best])(call)


def image(number: int) -> bytes:
    """A PNG that ends in a byte, by which `by_last_byte` scores it."""
    return encode(np.full((4, 4, 3), number, np.uint8), ".png") + bytes([128 + number])


@pytest.fixture
def circle(tmp_path):
    """A running service, its log with five images, and their answers."""
    log = tmp_path / "log"
    backend = StubBackend(by_last_byte, labels=scores_backend().infos[0].labels)
    with logging_service(log, backend, log_predictions_images=True) as client:
        for number in (10, 120, 5, 60, 1):
            send(client, image(number), X_Request_ID=f"r{number}")
        rows(log, 5)
        yield client, log, tmp_path


def test_circle_of_export_import_and_evaluation(circle):
    """The most uncertain images are exported, labelled, sent back, and evaluated; one is forgotten."""
    client, log, folder = circle
    out = folder / "out"
    assert (
        "2 images to label" in gateway("log", "export", out, "--log", log, "--unlabelled", "--most-uncertain", 2).output
    )
    table = table_of(out)
    assert [each["request_id"] for each in table] == ["r1", "r5"]
    for each in table:
        assert hashlib.sha256((out / each["image"]).read_bytes()).hexdigest() == each["sha256"]
        each["true_label"] = "class 1" if each["request_id"] == "r5" else "class 0"
    with (out / "labels.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, table[0])
        writer.writeheader()
        writer.writerows(table)
    assert dataset(log / "rows", format="parquet").count_rows() == 5, "any program that reads Parquet reads the log"
    assert "2 of 2 labels sent" in gateway("log", "import", out / "labels.csv", "--gateway", client.base_url).output
    rows(log, 2, "feedback")
    gateway("log", "export", folder / "rest", "--log", log, "--unlabelled", "--most-uncertain", 9)
    rest = [each["request_id"] for each in table_of(folder / "rest")]
    assert rest == ["r10", "r60", "r120"]
    printed = gateway("model", "evaluate", "ensemble_model", "--log", log).output
    assert "50.0 % (9.5 to 90.5)" in printed
    assert "calibration on all labelled results" in printed
    assert "expected calibration error" in printed
    found = json.loads(gateway("model", "evaluate", "ensemble_model", "--log", log, "--json").output)
    assert (found["all"]["images"], found["all"]["correct"]) == (2, 1)
    assert found["calibration"]["all"]["images"] == 2
    gateway("model", "evaluate", "ensemble_model", "--log", log, "--version", 7, code=1)
    gateway("model", "evaluate", "ensemble_model", "--log", log, folder, code=2)
    digest = hashlib.sha256(image(10)).hexdigest()
    assert "1 rows, 0 feedbacks, 1 image files" in gateway("log", "forget", digest, "--log", log).output
    assert len(rows(log)) == 4


def test_label_studio_has_tasks_and_its_export_comes_back_and_refused_labels_are_named(circle):
    client, log, folder = circle
    out = folder / "out"
    gateway("log", "export", out, "--log", log, "--most-uncertain", 1)
    (task,) = json.loads((out / "label-studio.json").read_text())
    (prediction,) = task["predictions"]
    (result,) = prediction["result"]
    interface = Xml.fromstring((out / "label-studio.xml").read_text())  # noqa: S314  # our own
    choices = interface.find("Choices")
    assert (result["from_name"], result["to_name"]) == (choices.get("name"), choices.get("toName"))
    assert result["value"]["choices"][0] in [choice.get("value") for choice in choices]
    assert interface.find("Image").get("value").removeprefix("$") in task["data"]
    # Label Studio's JSON export is the tasks with annotations.
    exported = [{**task, "annotations": [{"result": [{**result, "value": {"choices": ["class 1"]}}]}]}]
    (out / "done.json").write_text(json.dumps([*exported, {**task, "annotations": []}]))
    assert "1 of 1 labels sent" in gateway("log", "import", out / "done.json", "--gateway", client.base_url).output
    (row,) = rows(log, 1, "feedback")
    assert (row["request_id"], row["label"]) == ("r1", "class 1")
    # Refused labels are named.
    (folder / "labels.csv").write_text("request_id,index,model,true_label\r\nr1,0,ensemble_model,zebra\r\n")
    printed = gateway("log", "import", folder / "labels.csv", "--gateway", client.base_url, code=1).output
    assert "r1, image 0: 'label': the model 'ensemble_model' has no label 'zebra'" in printed


@pytest.mark.parametrize("text", ["a,b\n1,2\n", '{"a": 1}', "[1]"])
def test_other_files_of_labels_are_refused(tmp_path, text):
    path = tmp_path / ("labels.csv" if text[0] == "a" else "labels.json")
    path.write_text(text)
    assert "neither the labels.csv" in refusal("log", "import", path)


def log_with(image: str, folder: Path) -> LogReader:
    """A log with one row, whose image is what somebody wrote into the column."""
    write_file(folder, "rows/m/2026-01-01/a.parquet", [a_row(1, image=image)])
    return LogReader(str(folder))


@pytest.mark.parametrize(
    "image", ["../secret.txt", "images/../../secret.txt", "{tmp}/secret.txt", "images/day/out.jpg", "rows/m", "images/"]
)
def test_a_row_names_no_file_outside_of_the_images(tmp_path, image):
    """Whoever can write a row must not choose which file is copied into an export."""
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "log/images/day").mkdir(parents=True)
    (tmp_path / "log/images/day/out.jpg").symlink_to(tmp_path / "secret.txt")
    log = log_with(image.format(tmp=tmp_path), tmp_path / "log")
    with pytest.raises(LogUnavailable, match="whose image is not one of the log's"):
        export(log, tmp_path / "out", ExportSelection())
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


def test_log_without_results_is_refused(tmp_path):
    (tmp_path / "none").mkdir()
    for url, words in ((tmp_path / "none", "has no such results"), ("http://127.0.0.1:1/", "cannot be read")):
        assert words in refusal("log", "export", tmp_path / "out", "--log", url)


def test_reader_chooses_models_days_and_columns(circle):
    client, log, _ = circle
    send(client, image(7), path="/predict?model=m")
    rows(log, 6)
    reader, hour, now = LogReader(str(log)), timedelta(hours=1), datetime.now(UTC)
    assert reader.predictions(model="m").num_rows == 1
    assert reader.predictions(columns=["scores"]).column_names == ["scores"]
    assert [
        reader.predictions(**chosen).num_rows
        for chosen in ({"since": now + hour}, {"until": now - hour}, {"since": now - hour})
    ] == [0, 0, 6]
    assert sum(table.num_rows for table in reader.tables()) == 6


def test_reader_refuses_a_later_version_and_fills_missing_columns(tmp_path):
    folder = tmp_path / "rows" / "m" / "2026-01-01"
    folder.mkdir(parents=True)
    table = pa.table({"time": pa.array([NOON], pa.timestamp("us", "UTC")), "model": ["m"], "new": [1]})
    for version in (b"1", b"2"):
        pq.write_table(table.replace_schema_metadata({b"gateway.prediction_log": version}), folder / "a.parquet")
        reader = LogReader(str(tmp_path))
        if version == b"1":
            (found,) = reader.predictions().to_pylist()
            assert (found["model"], found["scores"]) == ("m", None)
        else:
            with pytest.raises(LogUnavailable, match="version 2"):
                reader.predictions()
