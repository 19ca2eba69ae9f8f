"""`gateway model calibrate`: temperature scaling of a network's scores, fitted on some images and shown on others."""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gateway.errors import UserError
from gateway.ingest.resizing import Resize
from gateway_models.blocking_triton import BlockingTriton
from gateway_models.proof.dataset import Sample
from gateway_models.proof.evaluate import SampleAnswer, predict_each
from gateway_models.proof.image_files import ImageFile, read_image_files
from gateway_models.repository.after import DeclaredStep, FunctionStep
from gateway_models.repository.entry import Entry
from gateway_predictions.calibration import Calibration, Estimate, calibration_of, estimates, measures

HELD_OUT = 0.5
LEAST_IMAGES = 20
"""The least images to fit with, and the least to show the result on."""
BATCH = 8
LEAST = float(np.finfo(np.float32).tiny)
"""As in templates/after/declared.py, which applies what is fitted here."""
TEMPERATURES = (0.05, 20.0)
"""The least and the highest temperature: beyond them, the scores hardly depend on it any more."""
Array = NDArray[np.float64]


class NotCalibrated(UserError):
    """A model cannot be calibrated with these images; the message says why."""


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
        logits = np.log(np.maximum(self.scores, LEAST)) / temperature
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return ScoredImages(powers / powers.sum(axis=1, keepdims=True), self.true)

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
    """What was fitted, and how the images that were held out look before and after."""

    temperature: float
    fitted_on: int
    held_out: int
    before: Calibration
    after: Calibration
    error_gain: Estimate
    """How much smaller the expected calibration error is; 0 within the interval means that chance explains it."""
    log_loss: tuple[float, float]
    top_1: float

    @property
    def helps(self) -> bool:
        """Whether the scores of the images that were held out are better: their log loss is lower."""
        return self.log_loss[1] < self.log_loss[0]

    def step(self, below: DeclaredStep | None) -> DeclaredStep:
        """The step, in front of what a step `below` declares beside a calibration."""
        return replace(below or DeclaredStep(), temperature=self.temperature, bias=())

    def document(self) -> dict[str, object]:
        """The same as plain data, for JSON."""
        sides = zip(("before", "after"), (self.before, self.after), self.log_loss, strict=True)
        return {
            **{name: getattr(self, name) for name in ("temperature", "fitted_on", "held_out", "top_1")},
            **{name: {**calibration.document(), "log_loss": loss} for name, calibration, loss in sides},
            "smaller_error": {"value": self.error_gain.value, "low": self.error_gain.low, "high": self.error_gain.high},
        }


def check_calibration(entry: Entry, version: int) -> DeclaredStep | None:
    """The declared step of a version that can be calibrated, None if it has none; raises NotCalibrated."""
    if entry.multi_label:
        raise NotCalibrated(f"{entry.name} is multi-label, and calibrate is for models with one class for each image")
    step = entry.versions[version].spec.after
    if isinstance(step, FunctionStep):
        raise NotCalibrated(
            f"version {version} of {entry.name} ends in the function {step.described()}, whose scores it would not "
            "calibrate: calibrate a version without it (--version)"
        )
    return step


def network_scores(
    entry: Entry, version: int, triton: BlockingTriton, samples: Sequence[Sample], resize: Resize | None
) -> Iterator[SampleAnswer]:
    """The scores of a version's network, before the step after it, for each sample; raises TritonRefused."""
    if entry.versions[version].spec.after is None:
        for (answer,) in predict_each((entry.ensemble_of(version),), triton.address, samples, resize):
            yield answer
        return
    for start in range(0, len(samples), BATCH):
        chosen = samples[start : start + BATCH]
        files = list(read_image_files((sample.path for sample in chosen), resize))
        yield from _step_by_step(entry, version, triton, chosen, files)


def _step_by_step(
    entry: Entry, version: int, triton: BlockingTriton, samples: Sequence[Sample], files: Sequence[ImageFile]
) -> Iterator[SampleAnswer]:
    fit = [file.payload for file in files if not file.reason]
    scores: Iterator[NDArray[np.float32]] = iter(())
    status: Iterator[int] = iter(())
    if fit:
        images = triton.preprocess(entry.preprocessor, fit)
        scores = iter(triton.classify(entry.classifier, images.values, str(entry.network_of(version))))
        status = iter(images.status.tolist())
    for sample, file in zip(samples, files, strict=True):
        if file.reason:
            yield SampleAnswer(sample, None, file.reason)
            continue
        row, code = next(scores), next(status)
        yield SampleAnswer(sample, None if code else row, f"the preprocessor gives it status {code}" if code else "")


def scored(answers: Sequence[SampleAnswer]) -> ScoredImages:
    """The scores and the classes of the images that were answered; raises NotCalibrated without any."""
    found = [each for each in answers if each.answered]
    if not found:
        raise NotCalibrated("none of the images could be classified")
    return ScoredImages(
        np.array([each.probabilities for each in found], np.float64),
        np.array([next(iter(each.sample.classes)) for each in found], np.intp),
    )


def calibrate(images: ScoredImages, *, held_out: float = HELD_OUT) -> Calibrated:
    """Fit on a part of the images, and measure on the rest; raises NotCalibrated if there are too few."""
    fitted, shown = split(images, held_out)
    if min(len(fitted), len(shown)) < LEAST_IMAGES:
        raise NotCalibrated(
            f"{len(fitted)} images to fit with and {len(shown)} held out are too few: at least {LEAST_IMAGES} of each, "
            "better some hundreds, none of them from training"
        )
    temperature = fit(fitted)
    after = shown.scaled(temperature)
    (scores, right), (new_scores, _) = shown.best, after.best

    def gain(drawn: NDArray[np.intp]) -> list[float]:
        return [measures(scores[drawn], right[drawn])[0] - measures(new_scores[drawn], right[drawn])[0]]

    return Calibrated(
        temperature,
        len(fitted),
        len(shown),
        calibration_of(scores, right),
        calibration_of(new_scores, right),
        estimates(len(shown), gain)[0],
        (shown.log_loss, after.log_loss),
        float(right.mean()),
    )


def split(images: ScoredImages, held_out: float) -> tuple[ScoredImages, ScoredImages]:
    """Images to fit with, and images that are held out, with about the same shares of each class."""
    shuffled = list(range(len(images)))
    random.Random(0).shuffle(shuffled)  # noqa: S311  # no secret
    of_class: dict[int, list[int]] = defaultdict(list)
    for number in shuffled:
        of_class[int(images.true[number])].append(number)
    # Spread evenly: every image of a class has its place between 0 and 1, and the part below the share is held out.
    places = [((at + 0.5) / len(each), number) for each in of_class.values() for at, number in enumerate(each)]
    out = np.array(sorted(number for place, number in places if place < held_out), np.intp)
    return images.of(np.setdiff1d(np.arange(len(images)), out)), images.of(out)


def fit(images: ScoredImages) -> float:
    """The temperature with the least log loss on these images (C. Guo et al., ICML 2017).

    It is exact on probabilities, and never changes which class is the best.
    """
    from scipy.optimize import minimize_scalar

    bounds = np.log(TEMPERATURES)  # a network that is always right would be sure without a bound
    found = minimize_scalar(lambda log: images.scaled(np.exp(log)).log_loss, bounds=bounds, method="bounded")
    return float(np.exp(found.x))
