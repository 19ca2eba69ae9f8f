"""Calibration on scikit-learn's handwritten digits: a network that is too sure becomes as sure as it is right."""

import numpy as np
import pytest

from gateway.errors import UserError
from gateway_models.networks.add import add_step
from gateway_models.proof.calibrate import (
    Calibrated,
    ScoredImages,
    calibrate,
    check_calibration,
    fit,
    scored,
    split,
)
from gateway_models.proof.evaluate import calibration_of
from gateway_models.proof.plots import reliability
from gateway_models.repository.after import DeclaredStep, FunctionStep
from gateway_models.repository.entry import read_entry
from tests.gateway_models.repository.entries import entry

TRAINED_ON, CALIBRATED_ON = 100, 1000


@pytest.fixture(scope="module")
def sure() -> tuple[ScoredImages, ScoredImages]:
    """The scores of a network that learnt a hundred digits by heart: of images to calibrate with, and of others.

    Its first layer is random, and its second one is solved for: a training takes much longer.
    """
    from sklearn.datasets import load_digits

    images, true = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(true))
    images, true = images[order] / 16, true[order].astype(np.intp)
    inner = np.maximum(images @ np.random.default_rng(0).normal(size=(64, 200)), 0)
    logits = inner @ np.linalg.lstsq(inner[:TRAINED_ON], 20 * np.eye(10)[true[:TRAINED_ON]])[0]
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores = powers / powers.sum(axis=1, keepdims=True)
    parts = slice(TRAINED_ON, TRAINED_ON + CALIBRATED_ON), slice(TRAINED_ON + CALIBRATED_ON, None)
    first, second = (ScoredImages(scores[part], true[part]) for part in parts)
    return first, second


@pytest.fixture(scope="module")
def calibrated(sure) -> Calibrated:
    return calibrate(sure[0])


def test_scores_become_as_high_as_the_share_of_right_answers(sure, calibrated):
    """On images that neither the network nor the fit has seen."""
    test = sure[1]
    assert calibrated.helps
    assert calibrated.temperature > 1
    before, after = (calibration_of(*images.best).error for images in (test, test.scaled(calibrated.temperature)))
    assert after < 0.7 * before
    assert calibrated.after.error < 0.7 * calibrated.before.error


def test_images_held_out_have_no_part_in_the_fit(sure, calibrated):
    fitted, shown = split(sure[0])
    assert len(fitted) + len(shown) == CALIBRATED_ON
    assert not {row.tobytes() for row in fitted.scores} & {row.tobytes() for row in shown.scores}
    shares = [np.bincount(part.true) / len(part) for part in (fitted, shown)]
    assert shares[0] == pytest.approx(shares[1], abs=0.02)
    assert fit(fitted) == calibrated.temperature
    assert calibrated.before == calibration_of(*shown.best)


def test_temperature_is_found_again():
    """Classes drawn by known probabilities, whose logits are then doubled."""
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=2, size=(4000, 5))
    honest = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    true = np.array([rng.choice(5, p=row) for row in honest])
    doubled = np.exp(2 * logits) / np.exp(2 * logits).sum(axis=1, keepdims=True)
    images = ScoredImages(doubled, true)
    assert fit(images) == pytest.approx(2, rel=0.1)
    assert images.scaled(2.0).scores == pytest.approx(honest, abs=1e-6)


def test_network_that_is_always_right_has_a_bounded_temperature():
    scores = np.full((100, 2), 0.4)
    scores[np.arange(100), np.arange(100) % 2] = 0.6
    assert fit(ScoredImages(scores, np.arange(100) % 2)) == pytest.approx(0.05, rel=1e-3)


def test_error_is_that_of_the_paper():
    """Two answers with 0.9, one of them right, and one with 0.4, which is wrong."""
    found = calibration_of(np.array([0.9, 0.9, 0.4]), np.array([True, False, False]))
    assert found.error == pytest.approx((2 * 0.4 + 0.4) / 3)
    assert [(each.images, each.score, each.right) for each in found.bins] == [(1, 0.4, 0), (2, 0.9, 0.5)]


def test_scores_at_the_ends_have_a_bin():
    found = calibration_of(np.array([0.0, 1.0, 1 / 15]), np.array([False, True, True]))
    assert [(each.low, each.images) for each in found.bins] == [(0, 2), (14 / 15, 1)]


def test_too_few_images_are_refused(sure):
    with pytest.raises(UserError, match="15 images to fit with and 15 held out are too few: at least 20"):
        calibrate(ScoredImages(np.full((30, 2), 0.5), np.arange(30) % 2))
    with pytest.raises(UserError, match="none of the images"):
        scored([])


@pytest.mark.parametrize("step", [FunctionStep("/a/step.py:f"), DeclaredStep(threshold=0.5, other="unsure")])
def test_versions_that_cannot_be_calibrated_are_refused(step):
    with pytest.raises(UserError, match="head is multi-label"):
        check_calibration(entry(multi_label=True), 1)
    with pytest.raises(UserError, match=r"has a step after its network \(.*\): calibrate a version without one"):
        check_calibration(entry(after=step), 1)


def test_diagram_has_both_sides(calibrated, tmp_path):
    sides = [("before", calibrated.before), ("after", calibrated.after)]
    reliability(sides, "digits $1$", tmp_path / "new" / "a.png")
    assert (tmp_path / "new" / "a.png").read_bytes().startswith(b"\x89PNG")


def test_scaling_and_step_give_the_same_scores(own_head):
    """Triton computes with the fitted values: the files of the step, run in this process."""
    from gateway_models.networks.functions import adapter_of

    step = DeclaredStep(temperature=1.7)
    _, number = add_step(step, own_head, "head", None, print)
    folder = own_head / "head.v2_after" / "1"
    served = adapter_of(folder).Served(folder)
    scores = np.random.default_rng(0).dirichlet(np.ones(5), 20)
    assert number == 2
    assert served(scores.astype(np.float32)) == pytest.approx(
        ScoredImages(scores, np.zeros(20, np.intp)).scaled(1.7).scores, abs=1e-6
    )
    assert read_entry(own_head, "head").versions[2].spec.after == step
