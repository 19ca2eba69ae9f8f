"""How long a log keeps its rows."""

from datetime import date, timedelta

import pytest

from gateway_models.predictions.layout import day_in, image_path, model_folder
from gateway_models.predictions.store import Store
from gateway_models.predictions.writer import shorten
from tests.gateway_models.predictions.logged import files, logging_service, rows, send
from tests.processes import wait_for

TODAY = date(2026, 3, 31)


def aged_log(folder, ages) -> None:
    """A log with a file of rows and an image of 10 bytes each on each of the days before TODAY."""
    store = Store(str(folder))
    for age in ages:
        day = (TODAY - timedelta(days=age)).isoformat()
        store.write(f"rows/model=m/day={day}/a.parquet", bytes(10))
        store.write(f"images/day={day}/{'a' * 64}.jpeg", bytes(10))


def kept(folder) -> list[int]:
    return sorted({(TODAY - day_in(str(path))).days for below in ("rows", "images") for path in files(folder, below)})


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
    aged_log(tmp_path, [0, 1, 30, 31])
    shorten(tmp_path, keep_days, keep_bytes, TODAY)
    assert kept(tmp_path) == left
    assert len(list((tmp_path / "rows" / "model=m").iterdir())) == len(left)  # no empty folders


def test_foreign_files_are_left_alone(tmp_path):
    aged_log(tmp_path, [400])
    (tmp_path / "rows/notes.txt").write_text("mine")
    (tmp_path / "rows/model=m/day=2020-99-01").mkdir()
    (tmp_path / "other/day=2020-01-01").mkdir(parents=True)
    shorten(tmp_path, 1, 1, TODAY)
    assert sorted(path.name for path in tmp_path.rglob("*") if not list(path.glob("*"))) == [
        *("day=2020-01-01", "day=2020-99-01", "images", "notes.txt"),
    ]


def test_running_service_applies_the_limits(tmp_path):
    old = tmp_path / "rows/model=m/day=2020-01-01"
    Store(str(tmp_path)).write("rows/model=m/day=2020-01-01/a.parquet", b"old")
    with logging_service(tmp_path, log_predictions_keep_days=1) as client:
        send(client)
        wait_for(lambda: not old.exists())
        rows(tmp_path, 1)
    assert len(files(tmp_path)) == 1


def test_names_of_models_stay_inside_the_log():
    assert model_folder("../x/y") == "rows/model=..%2Fx%2Fy"
    assert image_path("2026-01-01", "a" * 64, "JPEG 2000").endswith(".jpeg2000")
