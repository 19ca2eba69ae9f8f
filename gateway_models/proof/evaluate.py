"""`gateway model evaluate`: the accuracy of the served model."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import local

import numpy as np
from numpy.typing import NDArray

from gateway.ingest.resizing import Resize
from gateway_models.blocking_triton import Answers, BlockingTriton
from gateway_models.predictions.shares import ClassAccuracy, class_accuracies
from gateway_models.proof.dataset import Sample
from gateway_models.proof.image_files import NotCompared, reader

BATCH = 8
CALLERS = 4
"""Concurrent calls to Triton: enough to keep both steps of an ensemble busy."""
THRESHOLD = 0.5
"""The probability from which a multi-label model predicts a class."""
BINS = 15
"""Bins of equal width, as C. Guo et al. have them (On Calibration of Modern Neural Networks, ICML 2017)."""
Probabilities = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Answered:
    """The served answers for one sample: probabilities fp32 [classes], by each ensemble that was called."""

    sample: Sample
    scores: tuple[Probabilities, ...]
    embedding: NDArray[np.float32] | None = None
    """fp32 [size], by the first ensemble, if the model gives embeddings."""


@dataclass(frozen=True, slots=True)
class Bin:
    """The images whose best class has a score above `low` and up to `high`."""

    low: float
    high: float
    images: int
    score: float
    """The mean score of their best classes."""
    right: float
    """The share of them that were right."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The calibration of some answers."""

    bins: tuple[Bin, ...]
    """Those with images."""

    @property
    def error(self) -> float:
        """The expected calibration error: the mean over images of |score - share right| in the bin of each."""
        return sum(each.images * abs(each.score - each.right) for each in self.bins) / sum(
            each.images for each in self.bins
        )


def calibration_of(scores: NDArray[np.float64], right: NDArray[np.bool_]) -> Calibration:
    """The calibration of answers: the scores of their best classes, fp64 [images], and whether each is right.

    There must be images. A score at the border of two bins is in the lower one.
    """
    numbers = np.clip(np.ceil(scores * BINS).astype(np.intp) - 1, 0, BINS - 1)
    bins = ((int(number), numbers == number) for number in np.unique(numbers))
    return Calibration(
        tuple(
            Bin(n / BINS, (n + 1) / BINS, int(inside.sum()), float(scores[inside].mean()), float(right[inside].mean()))
            for n, inside in bins
        )
    )


def predicted(scores: Probabilities, *, multi_label: bool) -> frozenset[int]:
    """The classes of an answer: the top-1 class, or those from THRESHOLD for a multi-label model."""
    return frozenset(np.flatnonzero(scores >= THRESHOLD).tolist() if multi_label else [int(scores.argmax())])


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The answers of a model with this number of classes, and the images without one."""

    classes: int
    multi_label: bool
    answers: Sequence[Answered]
    refused: Sequence[NotCompared] = ()

    def top(self, k: int) -> float:
        """The share of images with a true class among the top k."""
        best = (set(np.argsort(each.scores[0])[::-1][:k].tolist()) for each in self.answers)
        hits = sum(bool(answer.sample.classes & found) for answer, found in zip(self.answers, best, strict=True))
        return hits / max(1, len(self.answers))

    def calibration(self) -> Calibration | None:
        """How well scores say how often answers are right; None for multi-label models, and without answers."""
        if self.multi_label or not self.answers:
            return None
        scores = np.array([each.scores[0] for each in self.answers], np.float64)
        best = scores.argmax(axis=1)
        right = [int(number) in each.sample.classes for number, each in zip(best, self.answers, strict=True)]
        return calibration_of(scores.max(axis=1), np.array(right, np.bool_))

    def confusion(self) -> NDArray[np.float64]:
        """Counts [true class, predicted class]; for multi-label models, every pair of the two counts."""
        counts = np.zeros((self.classes, self.classes))
        for answer in self.answers:
            for true in answer.sample.classes:
                for predicted in self._predicted(answer):
                    counts[true, predicted] += 1
        return counts

    def per_class(self, labels: Sequence[str]) -> list[ClassAccuracy]:
        """Recall and precision of each class that is true or predicted in any image."""
        pairs = ((each.sample.classes, self._predicted(each)) for each in self.answers)
        return [ClassAccuracy(labels[number], *shares) for number, shares in sorted(class_accuracies(pairs).items())]

    def _predicted(self, answer: Answered) -> frozenset[int]:
        return predicted(answer.scores[0], multi_label=self.multi_label)


def predict_each(
    ensembles: Sequence[str],
    address: str,
    samples: Sequence[Sample],
    resize: Resize | None = None,
    *,
    batch: int = BATCH,
) -> Iterator[Answered | NotCompared]:
    """Have the Triton at an address classify the samples by each ensemble, in calls of `batch` images.

    Yields the answers in order; raises TritonRefused. Each sample is read once, and large images are resized first, as
    in the gateway.
    """
    read, connections = reader(resize), local()
    opened: list[BlockingTriton] = []

    def answer(some: Sequence[Sample]) -> list[Answered | NotCompared]:
        if not hasattr(connections, "triton"):
            connections.triton = BlockingTriton(address)
            opened.append(connections.triton)
        payloads = [read(sample.path) for sample in some]
        encoded = [payload for payload in payloads if isinstance(payload, bytes)]
        results = [connections.triton.predict(ensemble, encoded) for ensemble in ensembles] if encoded else []
        rows = iter(range(len(encoded)))
        return [
            _answers(sample, results, next(rows)) if isinstance(payload, bytes) else payload
            for sample, payload in zip(some, payloads, strict=True)
        ]

    batches = [samples[start : start + batch] for start in range(0, len(samples), batch)]
    try:
        with ThreadPoolExecutor(CALLERS) as pool:
            for answers in pool.map(answer, batches):
                yield from answers
    finally:
        for triton in opened:
            triton.close()


def _answers(sample: Sample, results: Sequence[Answers], row: int) -> Answered | NotCompared:
    """The answers for one image of a batch, by each ensemble."""
    for result in results:
        if status := int(result.status[row]):
            return NotCompared(sample.path, f"the preprocessor gives it status {status}")
    embeddings = results[0].embeddings
    scores = tuple(each.values[row] for each in results)
    return Answered(sample, scores, None if embeddings is None else embeddings[row])
