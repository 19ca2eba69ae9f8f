"""Distances, what chance gives, and what the log and the model contribute to `gateway model drift`."""

import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import cv2
import numpy as np
import pytest

from gateway_plugins.shared.extras import install
from gateway_predictions import requirements
from gateway_predictions.drift.comparison import LEAST_IMAGES, TooFewImages, adjusted_p_values, compare
from gateway_predictions.drift.distances import (
    MOST_NAMES,
    KolmogorovSmirnov,
    MeanDiscrepancy,
    StabilityIndex,
    psi,
)
from gateway_predictions.drift.from_log import Period, sample_from, version_in
from gateway_predictions.drift.sample import LoggedImage, sample_of
from gateway_predictions.image_measures import measures_of, pixels_of
from gateway_predictions.reader import LogReader
from tests.commands import gateway, refusal
from tests.gateway_predictions.logged import write_file


def groups(first: int, second: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights of two groups, one after the other."""
    inside = np.repeat([0.0, 1.0], (first, second))
    return 1 - inside, inside


def images(count: int, seed: int = 0, *, brightness: float = 0.5, cats: float = 0.5, requests: int | None = None):
    """Images of cats and dogs, each a request of its own unless there are fewer requests."""
    rng = np.random.default_rng(seed)

    def image(number: int) -> LoggedImage:
        score = rng.uniform(0.5, 1)
        measured = {
            "score": score,
            "entropy": 1 - score,
            "pixels": rng.choice([1e5, 2e5]),
            "brightness": rng.normal(brightness, 0.1),
            "sharpness": None if number % 3 else rng.normal(1, 0.2),
        }
        names = {"class": "0" if rng.random() < cats else "1", "format": "JPEG"}
        return LoggedImage(f"r{number if requests is None else number % requests}", measured, names)

    return [image(number) for number in range(count)]


@pytest.mark.parametrize("digits", [1, 6], ids=["with ties", "without ties"])
def test_kolmogorov_smirnov_is_the_largest_difference_of_shares(digits):
    rng = np.random.default_rng(digits)
    first, second = rng.normal(0, 1, 40).round(digits), rng.normal(0.5, 1, 70).round(digits)
    expected = max(abs((first <= value).mean() - (second <= value).mean()) for value in [*first, *second])
    found = KolmogorovSmirnov(np.concatenate([first, second])).between(*groups(40, 70))
    assert found == pytest.approx(expected)


def test_stability_index_follows_its_formula():
    assert psi(np.array([89.5, 9.5]), np.array([49.5, 49.5])) == pytest.approx(
        (0.5 - 0.9) * math.log(0.5 / 0.9) + (0.5 - 0.1) * math.log(0.5 / 0.1)
    )
    names = np.array(["a"] * 5 + ["b"] * 5 + ["a"] * 8 + ["b"] * 2, object)
    assert StabilityIndex(names).between(*groups(10, 10)) == pytest.approx(psi(np.array([5, 5]), np.array([8, 2])))


def test_stability_index_takes_rare_names_together():
    names = np.array([str(number) for number in range(MOST_NAMES + 30)] + ["0"] * 20, object)
    reference, window = groups(MOST_NAMES + 30, 20)
    counts = [np.zeros(MOST_NAMES + 1) for _ in range(2)]
    counts[0][:MOST_NAMES], counts[0][-1], counts[1][0] = 1, 30, 20
    assert StabilityIndex(names).between(reference, window) == pytest.approx(psi(*counts))


def test_mean_discrepancy_is_unbiased():
    """The square is the difference of the kernel's means within and between groups, without an image and itself."""
    rng = np.random.default_rng(0)
    vectors = np.concatenate([rng.normal(0, 1, (12, 3)), rng.normal(1, 1, (9, 3))]).astype(np.float32)
    squares = ((vectors[:, None] - vectors[None]) ** 2).sum(axis=2)
    kernel = np.exp(-squares / np.median(squares[np.triu_indices(21, 1)]))
    first, second = kernel[:12, :12], kernel[12:, 12:]
    within = (first.sum() - 12) / (12 * 11) + (second.sum() - 9) / (9 * 8)
    expected = math.sqrt(within - 2 * kernel[:12, 12:].mean())
    assert MeanDiscrepancy(vectors).between(*groups(12, 9)) == pytest.approx(expected, rel=1e-3)
    assert MeanDiscrepancy(np.ones((8, 3), np.float32)).between(*groups(4, 4)) == 0


def test_images_that_a_bootstrap_draws_twice_are_not_compared_with_themselves():
    vectors = np.random.default_rng(1).normal(size=(6, 2)).astype(np.float32)
    reference, window = np.array([2.0, 2, 2, 0, 0, 0]), np.array([0.0, 0, 0, 1, 1, 1])
    once = MeanDiscrepancy(vectors).between(*groups(3, 3))
    assert MeanDiscrepancy(vectors).between(reference, window) == pytest.approx(once, rel=1e-4)


def test_p_values_are_adjusted_for_the_number_of_properties():
    distances = np.array([[9.0, 1.0], [1.0, 9.0], [2.0, 2.0], [3.0, 3.0]])
    # The first row and the second have a property that one row in four reaches.
    assert adjusted_p_values(distances).tolist() == [0.5, 1.0]


@pytest.mark.long
def test_false_alarms_are_as_rare_as_promised():
    """At most 1 - confidence of the windows without drift raise an alarm by any property."""
    alarms = 0
    for number in range(150):
        pool = images(260, number)
        found = compare(
            sample_of(pool[:180]), sample_of(pool[180:]), permutations=99, bootstraps=1, least_distance=0, seed=number
        )
        alarms += bool(found.alarms)
    assert alarms <= 15  # 5 % of 150, and three standard deviations


@pytest.mark.parametrize(
    ("drifted", "name"),
    [({"brightness": 0.35}, "brightness"), ({"cats": 0.8}, "class")],
    ids=["darkened", "class-shifted"],
)
def test_drift_raises_an_alarm(drifted, name):
    for number in range(5):
        found = compare(sample_of(images(300, number)), sample_of(images(150, 100 + number, **drifted)), bootstraps=20)
        # Another property may raise a false one.
        alarms = {shift.name: shift for shift in found.alarms}
        assert name in alarms
        assert 0 < alarms[name].interval[0] <= alarms[name].interval[1]
        assert found.document()["drift"] is True


def test_embeddings_raise_an_alarm():
    rng = np.random.default_rng(0)

    def with_vectors(count: int, seed: int, mean: float):
        vectors = rng.normal(mean, 1, (count, 16)).astype(np.float32)
        return sample_of(
            [replace(each, embedding=vector) for each, vector in zip(images(count, seed), vectors, strict=True)]
        )

    reference = with_vectors(200, 1, 0)
    alike, drifted = (compare(reference, with_vectors(100, 2, mean), bootstraps=1) for mean in (0, 0.6))
    assert "embedding" not in {shift.name for shift in alike.alarms}
    assert "embedding" in {shift.name for shift in drifted.alarms}


def test_certain_but_small_shifts_raise_no_alarm():
    reference, window = sample_of(images(4_000, 1, brightness=0.5)), sample_of(images(4_000, 2, brightness=0.485))
    found = {shift.name: shift for shift in compare(reference, window, permutations=199, bootstraps=1).shifts}
    assert found["brightness"].p_value <= 0.05
    assert found["brightness"].distance < 0.1
    assert not found["brightness"].is_alarm


def test_images_of_one_request_count_as_one():
    """Two requests of 100 alike images each are no evidence, however many images they have."""

    def alike(count: int, seed: int, requests: int, step: float) -> list[LoggedImage]:
        known = [(number % requests, each) for number, each in enumerate(images(count, seed))]
        return [
            LoggedImage(f"{seed}-{request}", {**each.numbers, "brightness": 0.3 + step * request}, each.names)
            for request, each in known
        ]

    window, reference = alike(200, 5, 2, 0.2), alike(400, 6, 4, 0.1)
    assert not compare(sample_of(reference), sample_of(window), permutations=199, bootstraps=1).alarms
    alone = [LoggedImage(str(n), each.numbers, each.names) for n, each in enumerate([*reference, *window])]
    found = compare(sample_of(alone[:400]), sample_of(alone[400:]), permutations=199, bootstraps=1)
    assert "brightness" in {shift.name for shift in found.alarms}


def test_same_samples_give_the_same_report():
    reference, window = sample_of(images(100, 1)), sample_of(images(100, 2))
    assert compare(reference, window, permutations=99) == compare(reference, window, permutations=99)


@pytest.mark.parametrize("count", [0, LEAST_IMAGES - 1, LEAST_IMAGES])
def test_comparison_needs_images(count):
    reference, window = sample_of(images(200)), sample_of(images(count))
    if count < LEAST_IMAGES:
        with pytest.raises(TooFewImages, match=f"the window {count}, and each needs {LEAST_IMAGES}"):
            compare(reference, window)
    else:
        # A third of them have a sharpness, which is too few to compare it.
        assert "sharpness" not in {shift.name for shift in compare(reference, window, permutations=99).shifts}


def photo(seed: int = 0) -> np.ndarray:
    """A picture with structure at all scales."""
    noise = np.random.default_rng(seed).uniform(0, 255, (256, 320, 3)).astype(np.float32)
    layers = [cv2.GaussianBlur(noise, (0, 0), sigma) * sigma for sigma in (1, 4, 16)]
    return cv2.normalize(sum(layers), None, 0, 255, cv2.NORM_MINMAX).astype(np.uint8)


def test_blur_lowers_the_sharpness_and_darkness_does_not():
    sharp = photo()
    blurred, dark = cv2.GaussianBlur(sharp, (0, 0), 2), (sharp * 0.5).astype(np.uint8)
    assert measures_of(blurred).sharpness < 0.5 * measures_of(sharp).sharpness
    assert measures_of(dark).sharpness == pytest.approx(measures_of(sharp).sharpness, rel=0.1)
    assert measures_of(dark).brightness == pytest.approx(measures_of(sharp).brightness / 2, rel=0.02)
    assert measures_of(blurred).brightness == pytest.approx(measures_of(sharp).brightness, rel=0.02)


@pytest.mark.parametrize(("value", "brightness"), [(0, 0), (255, 1), (51, 0.2)])
def test_plain_images_have_no_sharpness(value, brightness):
    for shape in ((8, 8, 3), (1, 1, 3), (2, 9, 3)):
        found = measures_of(np.full(shape, value, np.uint8))
        assert (found.brightness, found.sharpness) == (pytest.approx(brightness, abs=1e-5), 0)


def test_pixels_of_a_ppm():
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    assert (pixels_of(b"P6\n4 2\n255\n" + pixels.tobytes()) == pixels).all()
    with pytest.raises(ValueError):
        pixels_of(b"P6\n4 2\n255\n" + b"\0" * 23)
    with pytest.raises(ValueError):
        pixels_of(b"P5\n4 2\n255\n" + b"\0" * 24)


def write_rows(folder, found, at: datetime, *, version: str = "1", **members) -> None:
    """Write images into a log as its writer does, in one file."""
    rows = [
        {
            "time": at,
            "request_id": f"{at:%d}-{each.request}",
            "index": number,
            "model": "m",
            "version": version,
            "reasons": ["sample"],
            "labels": [{"0": "cat", "1": "dog"}[each.names["class"]]],
            "class_ids": [int(each.names["class"])],
            "scores": [each.numbers["score"]],
            "entropy": each.numbers["entropy"],
            "width": int(each.numbers["pixels"] / 100),
            "height": 100,
            "format": "JPEG",
            "brightness": each.numbers["brightness"],
            "sharpness": each.numbers["sharpness"],
            **members,
        }
        for number, each in enumerate(found)
    ]
    place = f"rows/m/{at:%Y-%m-%d}"
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
    found = sample_from(log, Period("m", "1", begin, None))
    assert len(found) == 30
    assert found.labels == {"0": "cat", "1": "dog"}
    assert np.isnan(found.numbers["sharpness"]).sum() == 20
    with pytest.raises(TooFewImages, match="LOG_PREDICTIONS_SHARE"):
        version_in(log, "other", begin, None)


def test_sample_is_bounded_and_keeps_whole_requests(tmp_path):
    for number in range(4):
        write_rows(tmp_path, images(100, number, requests=20), NOW)
    log, period = LogReader(str(tmp_path)), Period("m", "1", None, None)
    found = sample_from(log, period, most=50)
    assert len(found) == 50
    # Every request has 20 images of four files: at most one is cut.
    assert sorted(np.bincount(found.blocks).tolist())[-2:] == [20, 20]
    assert (found.blocks == sample_from(log, period, most=50).blocks).all()


def test_measures_of_a_busy_log_are_enough(tmp_path):
    """One row in fifty has a brightness: these count for that alone, beside the rows chosen at random."""
    for number in range(50):
        write_rows(tmp_path, images(98, number), NOW, brightness=None, sharpness=None, request_id=f"plain {number}")
        write_rows(tmp_path, images(2, number), NOW, sharpness=1.0, request_id=f"measured {number}")
    found = sample_from(LogReader(str(tmp_path)), Period("m", "1", None, None), most=200)
    answers = sum(name is not None for name in found.names["class"])
    measured = int((~np.isnan(found.numbers["brightness"])).sum())
    assert (answers, measured) == (200, 100)
    assert np.isnan(found.numbers["score"]).sum() == len(found) - 200
    assert len(found) <= 300


@pytest.fixture
def log(tmp_path):
    """Four days alike, and the last one."""
    for day in range(2, 6):
        write_rows(tmp_path / "log", images(60, day), NOW - timedelta(days=day))
    return tmp_path / "log"


def test_command_needs_a_reference_and_images_and_reports_no_drift(log, tmp_path):
    page = tmp_path / "page.html"
    options = ("--reference", 7, "--report", page, "--confidence", 0.99)
    refusal("model", "drift", "m", "--log", log, *options, kind=TooFewImages)
    write_rows(log, images(80, 50), NOW)
    for reference in ("nothing", "nan", "-1", "0", "10001"):
        gateway("model", "drift", "m", "--log", log, "--reference", reference, "--report", page, code=2)
    assert not page.exists()
    assert "no drift at a confidence of 99 %" in gateway("model", "drift", "m", "--log", log, *options).output
    text = page.read_text()
    assert text.count("<img ") == text.count("data:image/png;base64,") == text.count("<tr>") - 1 >= 6
    assert "http://" not in text


def test_command_exits_with_3_on_drift(log, tmp_path):
    write_rows(log, images(80, 50, brightness=0.3), NOW)
    page = tmp_path / "page.html"
    options = ("--reference", 7, "--report", page, "--json")
    document = json.loads(gateway("model", "drift", "m", "--log", log, *options, code=3).output)
    assert document["drift"] is True
    assert "brightness" in [each["name"] for each in document["properties"] if each["drift"]]
    assert document["images"] == {"reference": 240, "window": 80}
    assert "<tr class=drift><td>brightness</td>" in page.read_text()


READING_COMMANDS = pytest.mark.parametrize(
    "words",
    [
        ["log", "forget", "0" * 64],
        ["log", "export", "to-label"],
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
        error = refusal(*words, "--log", url, kind=requirements.LogUnavailable)
        assert str(tmp_path) in error
        assert "--log" in error


@READING_COMMANDS
def test_commands_name_the_missing_package(words, log, monkeypatch):
    monkeypatch.setattr(requirements, "find_spec", lambda name: None)
    assert install("log") in refusal(*words, "--log", log, kind=requirements.LogUnavailable)
