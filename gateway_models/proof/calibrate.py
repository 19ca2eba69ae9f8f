"""`gateway model calibrate`: temperature scaling of a network's scores, fitted on some images and shown on others."""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gateway.errors import UserError
from gateway.ingest.resizing import Resize
from gateway_models.blocking_triton import BlockingTriton
from gateway_models.proof.dataset import Sample
from gateway_models.proof.evaluate import SampleAnswer, predict
from gateway_models.proof.image_files import ImageFile, read_image_files
from gateway_models.repository.after import DeclaredStep, FunctionStep
from gateway_models.repository.entry import Entry
from gateway_predictions.calibration import Calibration, Estimate, calibration_of, estimate, measures, resamples

HELD_OUT = 0.5
LEAST_IMAGES = 20
"""The least images to fit with, and the least to show the result on."""
FOLDS = 5
BATCH = 8
ITERATIONS = 200
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

    @property
    def log_loss(self) -> Array:
        """The negative logarithm of the true class's score, fp64 [images]."""
        true = self.scores[np.arange(len(self)), self.true]
        return np.asarray(-np.log(np.maximum(true, LEAST)))

    @property
    def best(self) -> tuple[Array, NDArray[np.bool_]]:
        """The scores of the best classes, and whether each of them is true."""
        return self.scores.max(axis=1), self.scores.argmax(axis=1) == self.true


@dataclass(frozen=True, slots=True)
class Scaling:
    """The scores become softmax(log(score) / temperature + bias); `bias` is fp64 [classes], or None for 0."""

    temperature: float
    bias: Array | None = None

    def of(self, images: ScoredImages) -> ScoredImages:
        """The images with their new scores."""
        logits = np.log(np.maximum(images.scores, LEAST)) / self.temperature
        if self.bias is not None:
            logits = logits + self.bias
        logits -= logits.max(axis=1, keepdims=True)
        powers = np.exp(logits)
        return ScoredImages(powers / powers.sum(axis=1, keepdims=True), images.true)


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What was fitted, and how the images that were held out look before and after."""

    scaling: Scaling
    fitted_on: int
    held_out: int
    before: Calibration
    after: Calibration
    error_gain: Estimate
    """How much smaller the expected calibration error is; 0 within the interval means that chance explains it."""
    brier_gain: Estimate
    log_loss: tuple[float, float]
    accuracy: tuple[float, float]
    per_class: str
    """Whether a bias for each class is used, and why, in a sentence."""

    @property
    def helps(self) -> bool:
        """Whether the scores of the images that were held out are better: their log loss is lower."""
        return self.log_loss[1] < self.log_loss[0]

    def step(self, below: DeclaredStep | None) -> DeclaredStep:
        """The step, in front of what a step `below` declares beside a calibration."""
        bias = () if self.scaling.bias is None else tuple(float(each) for each in self.scaling.bias)
        return replace(below or DeclaredStep(), temperature=self.scaling.temperature, bias=bias)


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
        yield from predict(entry.ensemble_of(version), triton.address, samples, resize)
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
    found = [each for each in answers if each.probabilities is not None]
    if not found:
        raise NotCalibrated("none of the images could be classified")
    return ScoredImages(
        np.array([each.probabilities for each in found], np.float64),
        np.array([next(iter(each.sample.classes)) for each in found], np.intp),
    )


def calibrate(images: ScoredImages, *, held_out: float = HELD_OUT) -> Calibrated:
    """Fit on a part of the images, and measure on the rest; raises NotCalibrated if there are too few.

    A bias for each class is used only if it lowers the log loss in a cross-validation among the images of the fit, by
    more than one standard error: the images that are held out have no part in any choice.
    """
    fitted, shown = split(images, held_out)
    if min(len(fitted), len(shown)) < LEAST_IMAGES:
        raise NotCalibrated(
            f"{len(fitted)} images to fit with and {len(shown)} held out are too few: at least {LEAST_IMAGES} of each, "
            "better some hundreds, none of them from training"
        )
    scaling, why = choose(fitted)
    after = scaling.of(shown)
    (scores, right), (new_scores, new_right) = shown.best, after.best
    gains = np.array([
        np.subtract(measures(scores[each], right[each]), measures(new_scores[each], new_right[each]))
        for each in resamples(len(shown))
    ])  # fmt: skip
    error_gain, brier_gain = np.subtract(measures(scores, right), measures(new_scores, new_right))
    return Calibrated(
        scaling,
        len(fitted),
        len(shown),
        calibration_of(scores, right),
        calibration_of(new_scores, new_right),
        estimate(float(error_gain), gains[:, 0]),
        estimate(float(brier_gain), gains[:, 1]),
        (float(shown.log_loss.mean()), float(after.log_loss.mean())),
        (float(right.mean()), float(new_right.mean())),
        why,
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


def choose(fitted: ScoredImages) -> tuple[Scaling, str]:
    """The scaling for the images of the fit, and why it has a bias for each class or not."""
    seen = np.bincount(fitted.true, minlength=fitted.scores.shape[1])
    one = fit(fitted, per_class=False)
    if (seen < FOLDS).any():
        return one, f"one temperature for all: some classes have fewer than {FOLDS} images in the fit"
    fold = np.arange(len(fitted)) % FOLDS
    gains = []
    for number in range(FOLDS):
        inside, outside = (fitted.of(np.flatnonzero(part)) for part in (fold != number, fold == number))
        losses = [fit(inside, per_class=each).of(outside).log_loss for each in (False, True)]
        gains.append(losses[0] - losses[1])
    gain = np.concatenate(gains)
    standard_error = float(gain.std(ddof=1) / np.sqrt(len(gain)))
    shown = f"in a cross-validation it lowers the log loss by {gain.mean():.4f} ± {standard_error:.4f}"
    if gain.mean() > standard_error:
        return fit(fitted, per_class=True), f"a temperature, and a bias for each class: {shown}"
    return one, f"one temperature for all, without a bias for each class: {shown}"


def fit(images: ScoredImages, *, per_class: bool) -> Scaling:
    """The scaling with the least log loss on these images, by torch's L-BFGS.

    Temperature alone: C. Guo et al., ICML 2017. With a bias for each class: A. Alexandari et al., ICML 2020. Both are
    exact on probabilities, unlike a temperature for each class, for which the network's logits would be needed.
    """
    logits = torch.from_numpy(np.log(np.maximum(images.scores, LEAST)))
    true = torch.from_numpy(images.true.astype(np.int64))
    inverse = torch.zeros(1, dtype=torch.float64, requires_grad=True)  # the logarithm of 1 / temperature
    bias = torch.zeros(logits.shape[1], dtype=torch.float64, requires_grad=per_class)
    parameters = [inverse, bias] if per_class else [inverse]
    optimizer = torch.optim.LBFGS(parameters, max_iter=ITERATIONS, line_search_fn="strong_wolfe", tolerance_grad=1e-9)
    bound = float(np.log(TEMPERATURES[1]))

    def loss() -> Tensor:
        optimizer.zero_grad()
        # A network that is always right would be sure without a bound.
        scaled = logits * inverse.clamp(-bound, -float(np.log(TEMPERATURES[0]))).exp() + bias
        value = torch.nn.functional.cross_entropy(scaled, true)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    temperature = float(np.clip(np.exp(-inverse.item()), *TEMPERATURES))
    if not per_class:
        return Scaling(temperature)
    found = bias.detach().numpy()
    # One number for all classes changes nothing.
    return Scaling(temperature, found - found.mean())
