"""Which results are exported, how labels come back, and the accuracy by them."""

import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree as Xml

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.dataset import dataset

from gateway.inference.backend import Call
from gateway.inference.result import Row
from gateway_models.predictions import reader
from gateway_models.predictions.accuracy import accuracy, by_class, drawn, grouped
from gateway_models.predictions.labels import choose, export
from gateway_models.predictions.reader import Labelled, LogReader
from gateway_models.predictions.schema import FEEDBACK
from gateway_models.predictions.shares import Proportion
from gateway_models.predictions.store import LogUnavailable
from tests.asking import encode
from tests.commands import gateway, refusal
from tests.doubles.backend import StubBackend, ranked
from tests.gateway_models.predictions.logged import NOON, a_row, logging_service, rows, scores_backend, send, write_file


def log_of(folder: Path, given: list[dict], feedback: list[dict] = ()) -> LogReader:
    write_file(folder, "rows/model=m/day=2026-01-01/a.parquet", given)
    if feedback:
        write_file(folder, "feedback/day=2026-01-01/a.parquet", feedback, FEEDBACK)
    return LogReader(str(folder))


def chosen(log: LogReader, **wanted: object) -> list[int]:
    return [int(row["sha256"], 16) for row in choose(log, **wanted)]


def label_of(number: int, **members: object) -> dict:
    given = {"label": "cat", "class_id": 0, "key": "", "withdrawn": False, "drawn": False}
    return {"time": NOON, "request_id": f"r{number}", "index": 0, "model": "m", **given, **members}


def test_most_uncertain_come_first_and_each_image_once(tmp_path):
    known = [a_row(number, margin=number / 10) for number in (5, 1, 9, 3)]
    again = a_row(1, 0.2, request_id="again")
    alone = {**a_row(7), "margin": None, "labels": ["cat"], "class_ids": [0], "scores": [0.4]}
    log = log_of(tmp_path, [alone, again, *known], [label_of(3)])
    assert chosen(log, uncertain=3) == [1, 5, 9]
    assert chosen(log, uncertain=9) == [1, 5, 9, 7]
    assert sorted(chosen(log)) == [1, 5, 7, 9]


def test_random_images_have_no_preference(tmp_path):
    """Neither for uncertain images, nor for images that no user has reported; none is drawn twice."""
    known = [a_row(number, reasons=["sample"] if number % 2 else ["score"]) for number in range(40)]
    log = log_of(tmp_path, known, [label_of(1), label_of(3, drawn=True)])
    found = chosen(log, drawn=40)
    assert sorted(found) == [1, *range(5, 40, 2)]
    assert found != sorted(found)
    assert chosen(log, drawn=5) == found[:5]
    assert all(row["drawn"] for row in choose(log, drawn=5))


def test_accuracy_by_day_version_and_class():
    known = [
        Labelled(a_row(1), "cat", 0),
        Labelled(a_row(2), "dog", 1),
        Labelled(a_row(3, time=NOON + timedelta(days=1), version="2"), "cat", 0),
        Labelled(a_row(4, reasons=["score"]), None, None),
    ]
    assert accuracy(known) == Proportion(2, 4)
    assert accuracy(drawn(known)) == Proportion(0, 0)
    assert str(accuracy(known)) == "50.0 % (15.0 to 85.0)"
    by_version = grouped(known, lambda each: each.row["version"])
    assert by_version == {"1": Proportion(1, 3), "2": Proportion(1, 1)}
    cat, dog = by_class(known)
    assert (str(cat.recall)[:7], cat.precision.hits, cat.precision.count) == ("100.0 %", 2, 4)
    assert (dog.label, dog.recall.hits, dog.recall.count, str(dog.precision)) == ("dog", 0, 1, "-")


def by_last_byte(call: Call) -> Row:
    """The brighter the first image, the more certain it is of class 0."""
    best = call.images[0][-1] / 255
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
    """The most uncertain images are exported, labelled, sent back, and evaluated."""
    client, log, folder = circle
    out = folder / "out"
    options = ("--log", log, "--most-uncertain")
    assert "2 images to label" in gateway("predictions", "export", out, *options, 2).output
    tasks = json.loads((out / "label-studio.json").read_text())
    labels = {"r1": "class 0", "r5": "class 1"}
    assert [task["data"]["request_id"] for task in tasks] == list(labels)
    exported = [annotated(task, (labels[task["data"]["request_id"]], {})) for task in tasks]
    (out / "project.json").write_text(json.dumps(exported))
    assert dataset(log / "rows", format="parquet").count_rows() == 5, "any program that reads Parquet reads the log"
    printed = gateway("predictions", "import", out / "project.json", "--gateway", client.base_url).output
    assert "2 of 2 labels sent" in printed
    rows(log, 2, "feedback")
    gateway("predictions", "export", folder / "rest", *options, 9)
    rest = json.loads((folder / "rest" / "label-studio.json").read_text())
    assert [task["data"]["request_id"] for task in rest] == ["r10", "r60", "r120"]
    printed = gateway("model", "evaluate", "ensemble_model", "--log", log).output
    assert "50.0 % (9.5 to 90.5)" in printed
    gateway("model", "evaluate", "ensemble_model", "--log", log, "--version", 7, code=1)
    gateway("model", "evaluate", "ensemble_model", "--log", log, folder, code=2)
    gateway("predictions", "export", folder / "x", "--log", log, "--random", 1, "--most-uncertain", 1, code=2)
    other, digest = rows(log)[1:], rows(log)[0]["sha256"]
    printed = gateway("predictions", "forget", digest.upper(), "--log", log).output
    assert "1 rows, 0 feedbacks, 1 image files" in printed
    assert rows(log) == other
    assert "sha256sum FILE" in refusal("predictions", "forget", "a" * 63, "--log", log)


def test_forget_removes_rows_with_times_beyond_the_years_of_python(tmp_path):
    log_of(tmp_path, [a_row(1), a_row(2), {**a_row(3), "time": 2**62}])
    printed = gateway("predictions", "forget", f"{3:064x}", "--log", tmp_path).output
    assert "1 rows, 0 feedbacks, 0 image files" in printed
    assert len(rows(tmp_path)) == 2


def annotated(task: dict, *given: tuple[str, dict]) -> dict:
    """A task as Label Studio's JSON export has it, with an annotation for each label."""
    (result,) = task["predictions"][0]["result"]
    annotations = [
        {
            "id": 1_000 + number,
            "completed_by": 10,
            "result": [
                {"type": "rating", "from_name": "quality", "to_name": "image", "id": "q", "value": {"rating": 4}},
                {**result, "id": "Dx_aB91ISN", "origin": "manual", "value": {"choices": [label]}},
            ],
            "was_cancelled": False,
            "ground_truth": False,
            "created_at": "2026-03-09T21:16:08.728353Z",
            "updated_at": "2026-03-09T22:16:08.728378Z",
            "lead_time": 4.288,
            "task": 1,
            **members,
        }
        for number, (label, members) in enumerate(given)
    ]
    return {"id": 1, "created_at": "2026-03-09T20:00:00Z", "project": 83, **task, "annotations": annotations}


def test_label_studio_gets_tasks_and_its_export_comes_back(circle):
    client, log, folder = circle
    out = folder / "out"
    gateway("predictions", "export", out, "--log", log, "--random", 3)
    tasks = json.loads((out / "label-studio.json").read_text())
    assert len(tasks) == 3
    interface = Xml.fromstring((out / "label-studio.xml").read_text())  # noqa: S314  # our own
    choices = interface.find("Choices")
    for task in tasks:
        (prediction,) = task["predictions"]
        (result,) = prediction["result"]
        assert (result["from_name"], result["to_name"]) == (choices.get("name"), choices.get("toName"))
        assert result["value"]["choices"][0] in [choice.get("value") for choice in choices]
        assert 0 < prediction["score"] < 1
        image = task["data"][interface.find("Image").get("value").removeprefix("$")]
        path = out / image.removeprefix("/data/local-files/?d=")
        assert hashlib.sha256(path.read_bytes()).hexdigest() == task["data"]["sha256"]
    exported = [
        annotated(tasks[0], ("class 0", {"updated_at": "2026-03-10T00:00:00Z"}), ("class 1", {})),
        annotated(tasks[1], ("class 1", {}), ("class 0", {"was_cancelled": True})),
        annotated(tasks[2]),
    ]
    (out / "project-1.json").write_text(json.dumps(exported))
    printed = gateway("predictions", "import", out / "project-1.json", "--gateway", client.base_url).output
    assert "2 of 2 labels sent" in printed
    found = {row["request_id"]: (row["label"], row["drawn"]) for row in rows(log, 2, "feedback")}
    first, second = (task["data"]["request_id"] for task in tasks[:2])
    assert found == {first: ("class 0", True), second: ("class 1", True)}
    assert "logged and labelled at random  2: " in gateway("model", "evaluate", "ensemble_model", "--log", log).output


def test_images_stay_in_a_log_that_label_studio_reads(circle):
    _, log, folder = circle
    gateway("predictions", "export", folder / "out", "--log", log, "--image-url", "s3://bucket/log/")
    tasks = json.loads((folder / "out" / "label-studio.json").read_text())
    images = {task["data"]["image"].removeprefix("s3://bucket/log/") for task in tasks}
    assert len(images) == 5
    assert all((log / image).is_file() for image in images)
    assert not (folder / "out" / "images").exists()


TASK = {
    "annotations": [{"result": [{"from_name": "choice", "value": {"choices": ["zebra"]}}]}],
    "data": {"request_id": "r1", "index": 0, "model": "ensemble_model"},
}


def test_refused_labels_are_named(circle):
    client, _, folder = circle
    (folder / "labels.json").write_text(json.dumps([TASK]))
    printed = gateway("predictions", "import", folder / "labels.json", "--gateway", client.base_url, code=1).output
    assert "r1, image 0: 'label': the model 'ensemble_model' has no label 'zebra'" in printed


@pytest.mark.parametrize(
    "text",
    [
        *("a,b\n1,2\n", '{"a": 1}', "[1]", '[{"choice": "cat", "request_id": "r"}]', "[" * 100_000),
        json.dumps([{**TASK, "data": {**TASK["data"], "index": float("inf")}}]),
    ],
    ids=lambda text: text[:9],
)
def test_other_files_of_labels_are_refused(tmp_path, text):
    (tmp_path / "labels.json").write_text(text)
    assert "is no JSON export of Label Studio" in refusal("predictions", "import", tmp_path / "labels.json")


def log_with(image: str, folder: Path) -> LogReader:
    """A log with one row, whose column for the image has any value."""
    return log_of(folder, [a_row(1, image=image)])


@pytest.mark.parametrize(
    "image", ["../secret.txt", "images/../../secret.txt", "{tmp}/secret.txt", "images/day/out.jpg", "rows/m", "images/"]
)
def test_a_row_names_no_file_outside_of_the_images(tmp_path, image):
    """A writer of rows must not be able to choose which file is copied into an export."""
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "log/images/day").mkdir(parents=True)
    (tmp_path / "log/images/day/out.jpg").symlink_to(tmp_path / "secret.txt")
    log = log_with(image.format(tmp=tmp_path), tmp_path / "log")
    with pytest.raises(LogUnavailable, match="whose image is not one of the log's"):
        export(log, choose(log), tmp_path / "out")
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"sha256": None}, "a row has no sha256"),
        *(({"labels": labels}, "has not one label, class and score") for labels in (None, [None, None], ["cat"])),
        ({"time": 2**60}, "date value out of range"),
    ],
    ids=repr,
)
def test_damaged_row_is_refused_with_its_file(tmp_path, members, reason):
    log = log_of(tmp_path / "log", [a_row(1, **members)])
    with pytest.raises(LogUnavailable, match=rf"\.parquet cannot be read: .*{reason}"):
        export(log, choose(log), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_results_beyond_the_memory_are_refused(tmp_path, monkeypatch):
    log = log_of(tmp_path / "log", [a_row(1), a_row(2)])
    monkeypatch.setattr(reader, "MAX_ROWS", 1)
    with pytest.raises(LogUnavailable, match="has more than 1 rows"):
        log.results()


def test_log_without_results_is_refused(tmp_path):
    (tmp_path / "none").mkdir()
    assert "has no such results" in refusal("predictions", "export", tmp_path / "out", "--log", tmp_path / "none")


def test_reader_chooses_models_days_and_columns(circle):
    client, log, _ = circle
    send(client, image(7), path="/predict?model=m")
    rows(log, 6)
    log_reader, hour, now = LogReader(str(log)), timedelta(hours=1), datetime.now(UTC)
    assert len(log_reader.results(model="m")) == 1
    assert [table.column_names for table in log_reader.tables(model="m", columns=["scores"])] == [["scores"]]
    assert [
        sum(table.num_rows for table in log_reader.tables(**period))
        for period in ({"since": now + hour}, {"until": now - hour}, {"since": now - hour}, {})
    ] == [0, 0, 6, 6]


def test_reader_refuses_a_later_version_and_fills_missing_columns(tmp_path):
    folder = tmp_path / "rows" / "model=m" / "day=2026-01-01"
    folder.mkdir(parents=True)
    row = {name: [a_row(1)[name]] for name in ("request_id", "index", "model", "reasons", "sha256")}
    table = pa.table(row | {"time": pa.array([NOON], pa.timestamp("us", "UTC")), "new": [1]})
    for version in (b"1", b"2"):
        pq.write_table(table.replace_schema_metadata({b"gateway.prediction_log": version}), folder / "a.parquet")
        log = LogReader(str(tmp_path))
        if version == b"1":
            (found,) = next(log.tables()).to_pylist()
            assert (found["model"], found["scores"]) == ("m", None)
        else:
            with pytest.raises(LogUnavailable, match="version 2"):
                list(log.tables())
