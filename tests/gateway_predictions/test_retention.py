"""What a log keeps, and how one image is deleted."""

import hashlib
import threading
from datetime import date, timedelta

import pyarrow.parquet as pq
import pytest

from gateway_predictions import sinks
from gateway_predictions.forget import Forgotten, forget
from gateway_predictions.frames import LogMessage, RowKind
from gateway_predictions.layout import day_in, image_path, model_folder
from gateway_predictions.options import WriterOptions
from gateway_predictions.reader import LogReader
from gateway_predictions.requirements import LogUnavailable
from gateway_predictions.retention import apply_limits
from gateway_predictions.schema import PREDICTIONS
from gateway_predictions.sinks import FileSink
from gateway_predictions.stores import BucketStore, FolderStore
from tests.buckets import s3_server
from tests.doubles.backend import PNG
from tests.gateway_predictions.logged import files, logging_service, rows, send
from tests.processes import wait_for

TODAY = date(2026, 3, 31)


def aged_log(folder, days, nbytes=10) -> FolderStore:
    """A log with a file of rows and an image on each of the days before TODAY."""
    store = FolderStore(folder)
    for age in days:
        day = (TODAY - timedelta(days=age)).isoformat()
        store.write(f"rows/m/{day}/a.parquet", bytes(nbytes))
        store.write(f"images/{day}/{'a' * 64}.jpeg", bytes(nbytes))
    return store


def ages(store: FolderStore) -> list[int]:
    return sorted({(TODAY - day_in(file.path)).days for below in ("rows", "images") for file in store.files(below)})


@pytest.mark.parametrize(
    ("keep_days", "keep_bytes", "left"),
    [
        (0, 0, [0, 1, 30, 31]),
        (30, 0, [0, 1, 30]),
        (31, 0, [0, 1, 30, 31]),
        (0, 80, [0, 1, 30, 31]),
        (0, 79, [0, 1, 30]),
        (0, 40, [0, 1]),
        (0, 1, [0]),
        (1, 60, [0, 1]),
    ],
)
def test_limits_delete_the_oldest_days(tmp_path, keep_days, keep_bytes, left):
    store = aged_log(tmp_path, [0, 1, 30, 31])
    apply_limits(store, keep_days, keep_bytes, TODAY)
    assert ages(store) == left
    assert len(list((tmp_path / "rows" / "m").iterdir())) == len(left)  # no empty folders


def flooded_log(folder, age, files) -> FolderStore:
    """Thirty days of 20 bytes, of which one has some more images of 10 bytes, and feedback."""
    store = aged_log(folder, range(30))
    day = (TODAY - timedelta(days=age)).isoformat()
    for number in range(files):
        store.write(f"images/{day}/{number:064x}.jpeg", bytes(10))
    store.write(f"feedback/{day}/a.parquet", bytes(10))
    return store


@pytest.mark.parametrize("age", [0, 1, 29])
def test_flood_on_one_day_costs_no_other_day(tmp_path, age):
    """It would have deleted every day before it, or, today, all of them."""
    store = flooded_log(tmp_path, age, 100)
    before = set(files(tmp_path, "images"))
    apply_limits(store, 30, 700, TODAY)
    assert ages(store) == list(range(30))
    assert sum(file.nbytes for below in ("rows", "images", "feedback") for file in store.files(below)) == 700
    day = (TODAY - timedelta(days=age)).isoformat()
    gone = before - set(files(tmp_path, "images"))
    assert len(gone) == 91
    assert {path.parent.name for path in gone} == {day}
    assert next(store.files("feedback"), None) is not None


def test_exceptional_day_keeps_four_usual_days(tmp_path):
    """What is still too much costs the oldest days."""
    store = flooded_log(tmp_path, 1, 100)
    apply_limits(store, 30, 600, TODAY, {})
    assert ages(store) == list(range(27))
    kept = (TODAY - timedelta(days=1)).isoformat()
    assert sum(file.nbytes for file in store.files(f"images/{kept}")) == 60


def test_day_of_feedback_alone_is_deleted_with_the_oldest(tmp_path):
    """Feedback is not thinned out, and must not keep the limit from being applied."""
    store = aged_log(tmp_path, range(5))
    store.write(f"feedback/{(TODAY - timedelta(days=4)).isoformat()}/a.parquet", bytes(1_000))
    apply_limits(store, 30, 100, TODAY)
    assert ages(store) == [0, 1, 2, 3]
    assert next(store.files("feedback"), None) is None


def test_foreign_files_are_left_alone(tmp_path):
    store = aged_log(tmp_path, [400])
    store.write("rows/notes.txt", b"mine")
    store.write("other/2020-01-01/file", b"mine")
    apply_limits(store, 1, 1, TODAY)
    assert ages(FolderStore(tmp_path / "none")) == []
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["file", "notes.txt"]


class Counting(FolderStore):
    """Records which folders are listed, file by file; may refuse, or wait, when folders are listed."""

    def __init__(self, root, before_listing=lambda: None) -> None:
        super().__init__(root)
        self.listed: list[str] = []
        self._before_listing = before_listing

    def files(self, below):
        self.listed.append(below)
        return super().files(below)

    def folders(self, below):
        self._before_listing()
        return super().folders(below)


def test_files_are_listed_only_where_they_are_needed(tmp_path):
    aged_log(tmp_path, [0, 1, 2, 30, 31])
    store = Counting(tmp_path)
    apply_limits(store, 30, 0, TODAY)
    assert {day_in(f"{folder}/file") for folder in store.listed} == {TODAY - timedelta(days=31)}
    sizes = {}
    apply_limits(store, 0, 1_000, TODAY, sizes)
    store.listed.clear()
    apply_limits(store, 0, 1_000, TODAY, sizes)
    assert {(TODAY - day_in(f"{folder}/file")).days for folder in store.listed} == {0, 1}
    apply_limits(store, 0, 60, TODAY, sizes)
    assert ages(store) == [0, 1, 2]


def refuse() -> None:
    raise PermissionError("this key may not list")


def sink_of(store, monkeypatch, **options):
    monkeypatch.setattr(sinks, "open_store", lambda url: store)
    known = {"file_rows": 1, "file_bytes": 1, "file_seconds": 1.0, "keep_days": 30, "keep_bytes": 0}
    return FileSink(WriterOptions(url="memory", **known | options))


def frame() -> LogMessage:
    row = dict.fromkeys(PREDICTIONS.names) | {"model": "m", "time": 0, "request_id": "r", "index": 0, "reasons": []}
    return LogMessage(RowKind.PREDICTION, row, None, b"", 1)


def test_bucket_that_may_not_be_listed_gets_rows(tmp_path, monkeypatch):
    sink = sink_of(Counting(tmp_path, refuse), monkeypatch)
    assert list(sink.write([frame()])) == [1]
    warnings = []
    wait_for(lambda: warnings.append(sink.warning()) or any(warnings))
    assert max(warnings) == "old files are not deleted: PermissionError: this key may not list"
    assert sink.warning() == ""
    assert list(sink.write([frame()])) == [1]
    assert len(files(tmp_path)) == 2


def test_listing_that_hangs_delays_no_row(tmp_path, monkeypatch):
    hang = threading.Event()
    try:
        sink = sink_of(Counting(tmp_path, hang.wait), monkeypatch)
        assert list(sink.write([frame()])) == [1]
        assert len(files(tmp_path)) == 1
    finally:
        hang.set()


def test_a_bucket_keeps_the_limits_too(tmp_path, monkeypatch):
    with s3_server(tmp_path, "logs") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        aged_log(tmp_path / "logs" / "team", [0, 30, 31])
        store = BucketStore("s3://logs/team")
        assert store.folders("rows") == ["m"]
        assert store.folders("rows/none") == []
        assert apply_limits(store, 30, 0, TODAY) == 2
    assert ages(FolderStore(tmp_path / "logs" / "team")) == [0, 30]


def test_running_service_applies_the_limits(tmp_path):
    FolderStore(tmp_path).write("rows/m/2020-01-01/a.parquet", b"old")
    with logging_service(tmp_path, log_predictions_keep_days=1) as client:
        send(client)
        wait_for(lambda: not (tmp_path / "rows" / "m").exists())
    assert len(files(tmp_path)) == 1


def test_forgotten_image_leaves_nothing(tmp_path):
    other = PNG + b"another"
    forgotten, kept = hashlib.sha256(PNG).hexdigest(), hashlib.sha256(other).hexdigest()
    with logging_service(tmp_path, log_predictions_images=True, log_predictions_file_seconds=3600) as client:
        form = [("files", ("a.png", PNG, "image/png")), ("files", ("b.png", other, "image/png"))]
        client.post("/predict", files=form, headers={"X-Request-ID": "r1"})
        send(client, PNG, path="/predict?model=m")
        for index in (0, 1):
            client.post("/feedback", json={"request_id": "r1", "index": index, "wrong": True})
    log = LogReader(str(tmp_path))
    schemas = {path.parent: pq.read_schema(path) for path in files(tmp_path)}
    assert forget(log, forgotten.upper()) == Forgotten(rows=2, feedback=1, images=1)
    assert [path.read_bytes() for path in files(tmp_path, "images")] == [other]
    assert [row["sha256"] for row in rows(tmp_path)] == [kept]
    (path,) = files(tmp_path)
    assert pq.read_schema(path).equals(schemas[path.parent], check_metadata=True)
    assert [row["index"] for row in rows(tmp_path, below="feedback")] == [1]
    assert not (tmp_path / model_folder("m")).exists()
    assert forget(log, forgotten) == Forgotten()


@pytest.mark.parametrize("writes", ["the file as it was", "another file"])
def test_rows_that_come_back_meanwhile_are_forgotten(tmp_path, monkeypatch, writes):
    """Another command replaces the same file at the same moment, or a running service writes a row of the image."""
    with logging_service(tmp_path, log_predictions_file_seconds=3600) as client:
        send(client, PNG)
        send(client, PNG + b"another")
    (path,) = files(tmp_path)
    original = path.read_bytes()
    target = path if writes == "the file as it was" else path.with_name("later.parquet")
    write = FolderStore.write

    def raced(store: FolderStore, name: str, data: bytes) -> None:
        write(store, name, data)
        if not raced_once:
            raced_once.append(name)
            target.write_bytes(original)

    raced_once: list[str] = []
    monkeypatch.setattr(FolderStore, "write", raced)
    assert forget(LogReader(str(tmp_path)), hashlib.sha256(PNG).hexdigest()).rows == 2
    assert {row["sha256"] for row in rows(tmp_path)} == {hashlib.sha256(PNG + b"another").hexdigest()}


def test_images_are_forgotten_beside_a_running_service(tmp_path):
    """Rows of other images are written meanwhile, and none is lost."""
    with logging_service(tmp_path, log_predictions_images=True, log_predictions_file_seconds=0.1) as client:
        forgotten = hashlib.sha256(PNG).hexdigest()
        others = [PNG + bytes([number]) for number in range(20)]
        for other in others:
            send(client, PNG)
            send(client, other)
            forget(LogReader(str(tmp_path)), forgotten)
    forget(LogReader(str(tmp_path)), forgotten)
    assert sorted(row["sha256"] for row in rows(tmp_path)) == sorted(
        hashlib.sha256(other).hexdigest() for other in others
    )
    assert forgotten not in {path.stem for path in files(tmp_path, "images")}


@pytest.mark.parametrize("text", ["", "abc", "g" * 64, "a" * 63, "../" + "a" * 61])
def test_forget_needs_a_hash(tmp_path, text):
    with pytest.raises(LogUnavailable, match="sha256sum"):
        forget(LogReader(str(tmp_path)), text)


def test_names_of_models_stay_inside_the_log():
    assert model_folder("../x/y") == "rows/%2E.%2Fx%2Fy"
    assert model_folder("_a") == "rows/%5Fa"
    assert model_folder("") == "rows/unknown"
    assert image_path("2026-01-01", "a" * 64, "JPEG 2000").endswith(".jpeg2000")
