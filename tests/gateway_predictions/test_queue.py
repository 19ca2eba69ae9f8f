"""The queue of images to label: which come first, leases, progress, and the curves beside them."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway_predictions import labelling
from gateway_predictions.labelling import LEAST_REFERENCE, REFRESH_SECONDS, LabelQueue, drift_by_day
from gateway_predictions.leases import LEASE_SECONDS, Leases
from gateway_predictions.reader import LogReader
from gateway_predictions.schema import FEEDBACK
from gateway_predictions.stores import BucketStore, FolderStore
from tests.doubles.clock import Clock
from tests.gateway_predictions.logged import a_row, write_file

TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def row(number: int, margin: float = 0.5, **members: object) -> dict:
    """A row of today, whose image is stored."""
    image = f"images/{TODAY:%Y-%m-%d}/{number:064x}.png"
    return a_row(number, margin, **{"time": TODAY, "reasons": ["margin"], "image": image, **members})


def log(folder: Path, rows: list[dict], feedback: list[dict] | None = None) -> LogReader:
    write_file(folder, f"rows/m/{TODAY:%Y-%m-%d}/a.parquet", rows)
    if feedback:
        known = [{"time": TODAY, "index": 0, "model": "m", **each} for each in feedback]
        write_file(folder, f"feedback/{TODAY:%Y-%m-%d}/a.parquet", known, FEEDBACK)
    return LogReader(str(folder))


def queue_of(reader: LogReader, *, random: bool = False, **options: Any) -> LabelQueue:
    """A queue that offers random images wherever it may, or none."""
    return LabelQueue(reader, chance=lambda: 0.0 if random else 1.0, **options)


def offered(queue: LabelQueue, model: str = "m") -> list[str]:
    """The requests of all images that are left."""
    found = []
    while (image := queue.next(model)) is not None:
        found.append(str(image["request_id"]))
    return found


def test_most_uncertain_unlabelled_images_come_first(tmp_path):
    """Images that are old, failed, repeated, without a file or of another model are not offered."""
    rows = [row(number, margin=number / 10) for number in (5, 1, 9, 3)]
    rows += [row(7, margin=0.0, image=None), row(8, margin=0.0, error="too_costly"), row(2, margin=0.0)]
    rows += [row(6, margin=0.05, sha256=f"{1:064x}"), row(4, margin=0.0, model="other")]
    rows += [row(10, margin=0.0, time=TODAY - timedelta(days=40))]
    queue = queue_of(log(tmp_path, rows, [{"request_id": "r2", "label": "cat"}]))
    assert offered(queue) == ["r1", "r3", "r5", "r9"]
    assert offered(queue, "other") == []
    overview = queue.overview("m")
    assert (overview["labelled"], overview["waiting"]) == (1, 4)


def test_images_of_another_model_are_not_shown(tmp_path):
    rows = [row(1), row(2, model="other")]
    queue = LabelQueue(log(tmp_path, rows))
    for each in rows:
        stored = tmp_path / str(each["image"])
        stored.parent.mkdir(parents=True, exist_ok=True)
        stored.write_bytes(b"a picture")
    assert queue.image("m", str(rows[0]["image"])) is not None
    for path in (str(rows[1]["image"]), "rows/../images/x.png", "rows/m/a.parquet"):
        assert queue.image("m", path) is None


def test_different_images_come_before_similar_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(labelling, "QUEUE_IMAGES", 2)
    rows = [row(n, margin=n / 100, embedding=[1.0, n / 1000]) for n in range(4)]
    rows.append(row(4, margin=0.04, embedding=[0.0, 1.0]))
    assert offered(queue_of(log(tmp_path, rows))) == ["r0", "r4"]


def test_random_images_are_drawn_whatever_users_reported(tmp_path):
    """Without those that a user reported as wrong, the random images would have fewer mistakes than the service."""
    rows = [row(number, reasons=["sample"]) for number in range(4)] + [row(9)]
    feedback = [{"request_id": "r1", "label": None}, {"request_id": "r2", "label": "cat", "drawn": True}]
    queue = queue_of(log(tmp_path, rows, feedback), random=True)
    first = [queue.next("m") for _ in range(3)]
    assert {each["request_id"] for each in first if each} == {"r0", "r1", "r3"}
    assert all(each["drawn"] for each in first if each)
    last = queue.next("m")
    assert last is not None
    assert (last["request_id"], last["drawn"]) == ("r9", False)


def test_two_people_never_get_the_same_image(tmp_path):
    """Two processes with one log: what one offers, the other does not, before and after it reads the log again."""
    rows = [row(number, margin=number / 100) for number in range(20)]
    reader, clock = log(tmp_path, rows), Clock(1_000_000.0)
    one, other = (queue_of(reader, clock=clock) for _ in range(2))
    found = []
    for turn in range(10):
        found += [each["request_id"] for each in (one.next("m"), other.next("m")) if each]
        clock.seconds += REFRESH_SECONDS + 1 if turn % 3 == 0 else 0
    assert len(found) == len(set(found)) == 20
    assert one.next("m") is None


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_lease_holds_for_its_time_and_then_ends(tmp_path, kind):
    store = FolderStore(tmp_path) if kind == "folder" else BucketStore(f"memory://{tmp_path}")
    clock = Clock()
    clock.seconds = 7 * LEASE_SECONDS + 1
    leases, others = (Leases(store, clock=clock) for _ in range(2))
    assert leases.take("a")
    assert not others.take("a")
    assert others.take("b")
    clock.seconds = 9 * LEASE_SECONDS - 1
    assert not others.take("a")
    assert others.held() == {"a", "b"}
    clock.seconds = 9 * LEASE_SECONDS
    assert others.take("a")
    assert [file.path for file in store.files("leases")] == ["leases/9/a"]


def test_accuracy_by_day_has_intervals(tmp_path):
    rows = [row(number, reasons=["sample"]) for number in range(10)]
    feedback = [{"request_id": f"r{number}", "class_id": int(number > 7), "drawn": True} for number in range(10)]
    days: Any = LabelQueue(log(tmp_path, rows, feedback)).overview("m")["accuracy"]
    (day,) = days
    assert (day["images"], day["value"]) == (10, 0.8)
    assert 0.4 < day["low"] < 0.8 < day["high"] < 1


def test_drift_is_seen_and_chance_is_not_drift():
    rng = np.random.default_rng(1)
    days = [f"2026-01-{number:02}" for number in range(1, 8)]
    same = {day: Counter(rng.choice(4, 200, p=[0.4, 0.3, 0.2, 0.1]).tolist()) for day in days}
    found = drift_by_day(same)
    assert [each["day"] for each in found] == days[1:]
    assert sum(each["value"] > each["chance"] for each in found) <= 1
    (*_, last) = drift_by_day({**same, days[-1]: Counter({3: 150, 0: 50})})
    assert last["low"] > last["chance"]
    assert last["low"] < last["value"] < last["high"] * 1.01


@pytest.mark.parametrize(("first", "days"), [(LEAST_REFERENCE, 1), (LEAST_REFERENCE - 1, 0)])
def test_first_days_are_the_reference(first, days):
    classes = {"2026-01-01": Counter({0: first}), "2026-01-02": Counter({0: 5})}
    assert len(drift_by_day(classes)) == days
