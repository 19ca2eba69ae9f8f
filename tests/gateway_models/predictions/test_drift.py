"""`gateway model drift`: false alarms, and the data from the log and the model."""

import math
import shutil
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from gateway.triton.configs import parameters, read_model_config
from gateway.triton.contract import DRIFT_REFERENCE_PARAMETER
from gateway.values.extras import install
from gateway.values.rollout import Rollout
from gateway_models.networks.export import EFFICIENTNET_LITE0, default_entry
from gateway_models.predictions import store
from gateway_models.predictions.drift import (
    LEAST_IMAGES,
    compare,
    psi,
    sample_from,
    sample_of,
    version_in,
)
from gateway_models.predictions.live_drift import STORED_IMAGES, read_reference
from gateway_models.predictions.reader import LogReader
from gateway_models.repository.manage import use
from gateway_models.repository.writing import rewrite
from tests.commands import gateway, refusal
from tests.gateway_models.predictions.logged import write_file


def images(count: int, seed: int = 0, *, pixels: float = 1e5, cats: float = 0.5) -> list[dict]:
    """Images of cats and dogs, of which a third has an entropy."""
    rng = np.random.default_rng(seed)
    return [
        {
            "score": score,
            "entropy": None if number % 3 else 1 - score,
            "pixels": rng.normal(pixels, 1e4),
            "class": "0" if rng.random() < cats else "1",
            "format": "JPEG",
        }
        for number, score in enumerate(rng.uniform(0.5, 1, count))
    ]


def drifted(reference: list[dict], window: list[dict]) -> set[str]:
    return {shift.name for shift in compare(sample_of(reference), sample_of(window)) if shift.drift}


def test_stability_index_follows_its_formula():
    assert psi(np.array([89.5, 9.5]), np.array([49.5, 49.5])) == pytest.approx(
        (0.5 - 0.9) * math.log(0.5 / 0.9) + (0.5 - 0.1) * math.log(0.5 / 0.1)
    )


@pytest.mark.long
def test_false_alarms_are_as_rare_as_promised():
    """At most 1 - confidence of the windows without drift have any property as improbable, at any distance."""
    alarms = 0
    for number in range(150):
        pool = images(260, number)
        shifts = compare(sample_of(pool[:180]), sample_of(pool[180:]))
        alarms += min(shift.p_value for shift in shifts) <= 0.05
    assert alarms <= 15  # 5 % of 150, and three standard deviations


@pytest.mark.parametrize(
    ("change", "name"),
    [({"pixels": 8.5e4}, "pixels"), ({"cats": 0.8}, "class")],
    ids=["smaller", "class-shifted"],
)
def test_drift_raises_an_alarm(change, name):
    for number in range(5):
        assert name in drifted(images(300, number), images(150, 100 + number, **change))


def test_rare_classes_count_together():
    rng = np.random.default_rng(0)

    def of_many_classes(lowest: int) -> list[dict]:
        return [{**each, "class": str(rng.integers(lowest, 200))} for each in images(300)]

    assert "class" not in drifted(of_many_classes(0), of_many_classes(0))
    common = [{**each, "class": "7"} for each in images(300)]
    assert "class" in drifted(of_many_classes(0), common)
    assert "class" not in drifted(common, common)


def test_certain_but_small_shifts_raise_no_alarm():
    sides = sample_of(images(1_000, 7)), sample_of(images(1_000, 8, pixels=9.8e4))
    found = {shift.name: shift for shift in compare(*sides)}
    assert found["pixels"].p_value <= 0.05
    assert found["pixels"].distance < 0.1
    assert not found["pixels"].drift


def test_comparison_needs_images():
    with pytest.raises(store.LogUnavailable, match=f"window {LEAST_IMAGES - 1}, each of another request, and each"):
        compare(sample_of(images(200)), sample_of(images(LEAST_IMAGES - 1)))
    # A third of them have an entropy, which is too few to compare it.
    shifts = compare(sample_of(images(200)), sample_of(images(LEAST_IMAGES)))
    assert "entropy" not in {shift.name for shift in shifts}


def write_rows(
    folder, found, at: datetime, *, model: str = "m", version: str = "1", request: str = "", **members
) -> None:
    """Write images into a log as its writer does, in one file; each from another request unless one is named."""
    rows = [
        {
            "time": at,
            "request_id": request or f"{at:%d}-{number}",
            "index": number,
            "model": model,
            "version": version,
            "reasons": ["sample"],
            "labels": [{"0": "cat", "1": "dog"}[each["class"]]],
            "class_ids": [int(each["class"])],
            "scores": [each["score"]],
            "width": int(each["pixels"] / 100),
            "height": 100,
            **{name: each.get(name) for name in ("entropy", "format")},
            **members,
        }
        for number, each in enumerate(found)
    ]
    place = f"rows/model={model}/day={at:%Y-%m-%d}"
    write_file(folder, f"{place}/{len(list(folder.glob(f'{place}/*')))}.parquet", rows)


NOW = datetime.now(UTC) - timedelta(hours=2)


def test_sample_has_random_rows_of_one_version_alone(tmp_path):
    write_rows(tmp_path, images(30, 1), NOW)
    write_rows(tmp_path, images(20, 2), NOW, version="2")
    write_rows(tmp_path, images(10, 3), NOW, reasons=["score"])
    write_rows(tmp_path, images(10, 4), NOW, error="undecodable_image", scores=[], class_ids=[], labels=[])
    write_rows(tmp_path, images(10, 5), NOW - timedelta(days=3))
    log = LogReader(str(tmp_path))
    begin = NOW - timedelta(days=1)
    assert version_in(log, "m", begin, None) == "1"
    found = sample_from(log, "m", "1", begin, None)
    assert found.images == 30
    assert found.labels == {"0": "cat", "1": "dog"}
    assert len(found.values["entropy"]) == 10
    with pytest.raises(store.LogUnavailable, match="LOG_PREDICTIONS_SHARE"):
        version_in(log, "other", begin, None)


def test_one_image_of_each_request_counts(tmp_path):
    """Images of one request may resemble each other: a hundred frames of one scene are one piece of evidence."""
    for number in range(4):
        numbered = [{**each, "pixels": 100 * index} for index, each in enumerate(images(100, number))]
        write_rows(tmp_path, numbered, NOW, request=f"r{number}")
    found = sample_from(LogReader(str(tmp_path)), "m", "1", None, None)
    assert found.images == len(found.values["class"]) == 4
    assert len({*found.values["pixels"]}) > 1, "not always the same position of a request"
    again = sample_from(LogReader(str(tmp_path)), "m", "1", None, None)
    assert again.values["score"].tolist() == found.values["score"].tolist()


def test_sample_of_a_busy_log_is_bounded(tmp_path):
    for number in range(11):
        write_rows(tmp_path, images(100, number), NOW - timedelta(days=number))
    found = sample_from(LogReader(str(tmp_path)), "m", "1", None, None)
    assert (len(found.values["class"]), len(found.values["score"])) == (1_000, 1_000)


@pytest.fixture
def log(tmp_path):
    """Four days alike, and the last one."""
    for day in range(2, 6):
        write_rows(tmp_path / "log", images(60, day), NOW - timedelta(days=day))
    return tmp_path / "log"


def test_command_needs_a_reference_and_images_and_reports_no_drift(log):
    options = ("--reference", 7)
    refusal("model", "drift", "m", "--log", log, *options, kind=store.LogUnavailable)
    write_rows(log, images(80, 50), NOW)
    for reference in ("nan", "-1", "0", "10001"):
        gateway("model", "drift", "m", "--log", log, "--reference", reference, code=2)
    refusal("model", "drift", "m", "--log", log, "--reference", "nothing", kind=store.LogUnavailable)
    gateway("model", "drift", "m", "--log", log, *options, "--triton", "127.0.0.1:8001", code=2)
    assert "no drift at a confidence of 95 %" in gateway("model", "drift", "m", "--log", log, *options).output


@pytest.mark.parametrize("other", [False, True], ids=["days", "another log"])
def test_command_exits_with_3_on_drift(log, tmp_path, other):
    reference = shutil.copytree(log, tmp_path / "expected") if other else 7
    write_rows(log, [{**each, "format": "PNG"} for each in images(80, 50, pixels=5e4)], NOW)
    printed = gateway("model", "drift", "m", "--log", log, "--reference", reference, code=3).output
    assert "240 and 80 images" in printed
    assert "verdict    drift: format, pixels" in printed


NAME = "ensemble_model"


@pytest.fixture
def repository(tmp_path):
    """The default model without its network."""
    rewrite(default_entry(EFFICIENTNET_LITE0), tmp_path / "models")
    return tmp_path / "models"


def stored(repository) -> str | None:
    return parameters(read_model_config(repository / NAME / "config.pbtxt")).get(DRIFT_REFERENCE_PARAMETER)


def test_reference_of_enough_images_is_stored_with_the_version(repository, tmp_path):
    """It is part of the record, so that a later change of the model keeps it."""
    store_it = ("model", "drift", NAME, "--reference", 7, "--store", "--log", tmp_path / "log")
    store_it += ("--model-repository", repository)
    write_rows(tmp_path / "log", images(STORED_IMAGES - 1), NOW, model=NAME)
    assert "from 500 images at least" in refusal(*store_it, kind=store.LogUnavailable)
    assert stored(repository) is None
    write_rows(tmp_path / "log", images(1), NOW, model=NAME, request="another")
    gateway(*store_it)
    written = stored(repository)
    assert {label for label, _ in read_reference(written).classes.values()} == {"cat", "dog"}
    use(repository, NAME, Rollout.of(["1"]))
    assert stored(repository) == written


READING_COMMANDS = pytest.mark.parametrize(
    "words",
    [
        ["predictions", "forget", "0" * 64],
        ["predictions", "export", "to-label"],
        ["model", "evaluate", "m"],
        ["model", "drift", "m", "--reference", "7"],
    ],
    ids=lambda words: " ".join(words[:2]),
)


@READING_COMMANDS
def test_commands_need_the_folder_of_a_log(words, tmp_path):
    """A wrong path is not taken for a log without rows."""
    (tmp_path / "file").touch()
    for url in (tmp_path / "missing", (tmp_path / "missing").as_uri(), tmp_path / "file"):
        error = refusal(*words, "--log", url, kind=store.LogUnavailable)
        assert str(tmp_path) in error
        assert "--log" in error


@READING_COMMANDS
def test_commands_name_the_missing_package(words, log, monkeypatch):
    monkeypatch.setattr(store, "find_spec", lambda name: None)
    assert install("log") in refusal(*words, "--log", log, kind=store.LogUnavailable)
