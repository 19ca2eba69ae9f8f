"""`gateway model calibrate`: temperature scaling of a network's scores, fitted on some images and shown on others."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.errors import UserError
from gateway_models.proof.evaluate import Answered, Calibration, calibration_of
from gateway_models.repository.entry import Entry

LEAST_IMAGES = 20
"""The least images to fit with, and the least to show the result on."""
LEAST = float(np.finfo(np.float32).tiny)
"""As in templates/after/declared.py, which applies what is fitted here."""
TEMPERATURES = (0.05, 20.0)
"""The least and the highest temperature: beyond them, the scores hardly depend on it."""
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ScoredImages:
    """The network's scores of labelled images: fp64 [images, classes], and the true classes, int [images]."""

    scores: Array
    true: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.true)

    def of(self, chosen: NDArray[np.intp]) -> "ScoredImages":
        """Some of the images."""
        return ScoredImages(self.scores[chosen], self.true[chosen])

    def scaled(self, temperature: float) -> "ScoredImages":
        """The images with the scores softmax(log(score) / temperature)."""
        from scipy.special import softmax

        return ScoredImages(softmax(np.log(np.maximum(self.scores, LEAST)) / temperature, axis=1), self.true)

    @property
    def log_loss(self) -> float:
        """The mean of the negative logarithm of the true class's score."""
        true = self.scores[np.arange(len(self)), self.true]
        return float(-np.log(np.maximum(true, LEAST)).mean())

    @property
    def best(self) -> tuple[Array, NDArray[np.bool_]]:
        """The scores of the best classes, and whether each of them is true."""
        return self.scores.max(axis=1), self.scores.argmax(axis=1) == self.true


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The fitted temperature, and the calibration of the held-out images before and after."""

    temperature: float
    fitted_on: int
    held_out: int
    before: Calibration
    after: Calibration
    log_loss: tuple[float, float]
    top_1: float

    @property
    def helps(self) -> bool:
        """Whether the scores of the images that were held out are better: their log loss is lower."""
        return self.log_loss[1] < self.log_loss[0]


def check_calibration(entry: Entry, version: int) -> None:
    """Raise UserError if a version's scores are not for one class out of the network's."""
    if entry.spec.multi_label:
        raise UserError(f"{entry.name} is multi-label, and calibrate is for models with one class for each image")
    if step := entry.versions[version].spec.after:
        raise UserError(
            f"version {version} of {entry.name} has a step after its network ({step.described()}): calibrate a version "
            "without one (--version), and add the step to the calibrated version by `gateway model postprocess`"
        )


def scored(answers: Sequence[Answered]) -> ScoredImages:
    """The scores and the classes of images; raises UserError without any."""
    if not answers:
        raise UserError("none of the images could be classified")
    return ScoredImages(
        np.array([each.scores[0] for each in answers], np.float64),
        np.array([next(iter(each.sample.classes)) for each in answers], np.intp),
    )


def calibrate(images: ScoredImages) -> Calibrated:
    """Fit on half of the images, and measure on the other half; raises UserError if there are too few."""
    fitted, shown = split(images)
    if min(len(fitted), len(shown)) < LEAST_IMAGES:
        raise UserError(
            f"{len(fitted)} images to fit with and {len(shown)} held out are too few: at least {LEAST_IMAGES} of each, "
            "better some hundreds, none of them from training"
        )
    temperature = fit(fitted)
    after = shown.scaled(temperature)
    return Calibrated(
        temperature,
        len(fitted),
        len(shown),
        calibration_of(*shown.best),
        calibration_of(*after.best),
        (shown.log_loss, after.log_loss),
        float(shown.best[1].mean()),
    )


def split(images: ScoredImages) -> tuple[ScoredImages, ScoredImages]:
    """Images to fit with, and images that are held out, with about the same shares of each class."""
    order = np.random.default_rng(0).permutation(len(images))
    order = order[np.argsort(images.true[order], kind="stable")]
    return images.of(order[::2]), images.of(order[1::2])


def fit(images: ScoredImages) -> float:
    """The temperature with the least log loss on these images (C. Guo et al., ICML 2017).

    It is exact on probabilities, and never changes which class is the best.
    """
    from scipy.optimize import minimize_scalar

    bounds = np.log(TEMPERATURES)  # a network that is always right would be sure without a bound
    found = minimize_scalar(lambda log: images.scaled(np.exp(log)).log_loss, bounds=bounds, method="bounded")
    return float(np.exp(found.x))
