"""`gateway model evaluate`: the accuracy of the served model."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import local

import numpy as np
from numpy.typing import NDArray

from gateway.ingest.resizing import Resize
from gateway_models.blocking_triton import Answers, BlockingTriton
from gateway_models.predictions.shares import ClassAccuracy, Proportion
from gateway_models.proof.calibration import Calibration, calibration_of
from gateway_models.proof.dataset import Sample
from gateway_models.proof.image_files import NotCompared, reader

BATCH = 8
CALLERS = 4
"""Concurrent calls to Triton: enough to keep both steps of an ensemble busy."""
THRESHOLD = 0.5
"""The probability from which a multi-label model predicts a class."""


@dataclass(frozen=True, slots=True)
class SampleAnswer:
    """The served answer for one sample: probabilities fp32 [classes]."""

    sample: Sample
    probabilities: NDArray[np.float32]
    embedding: NDArray[np.float32] | None = None
    """fp32 [size], if the model gives embeddings."""


SampleAnswers = tuple[SampleAnswer, ...]
"""One for each ensemble that was called."""


def predicted(scores: NDArray[np.float32], *, multi_label: bool) -> frozenset[int]:
    """The classes of an answer: the top-1 class, or those from THRESHOLD for a multi-label model."""
    return frozenset(np.flatnonzero(scores >= THRESHOLD).tolist() if multi_label else [int(scores.argmax())])


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The answers of a model with this number of classes, and the images without one."""

    classes: int
    multi_label: bool
    answers: Sequence[SampleAnswer]
    refused: Sequence[NotCompared] = ()

    def top(self, k: int) -> float:
        """The share of images with a true class among the top k."""
        best = (set(np.argsort(each.probabilities)[::-1][:k].tolist()) for each in self.answers)
        hits = sum(bool(answer.sample.classes & found) for answer, found in zip(self.answers, best, strict=True))
        return hits / max(1, len(self.answers))

    def calibration(self) -> Calibration | None:
        """How well scores say how often answers are right; None for multi-label models, and without answers."""
        if self.multi_label or not self.answers:
            return None
        scores = np.array([each.probabilities for each in self.answers], np.float64)
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
        true, predicted, both = (np.zeros(self.classes, int) for _ in range(3))
        for answer in self.answers:
            found = self._predicted(answer)
            for number in answer.sample.classes:
                true[number] += 1
                both[number] += number in found
            for number in found:
                predicted[number] += 1
        counts = enumerate(zip(both.tolist(), true.tolist(), predicted.tolist(), strict=True))
        return [
            ClassAccuracy(labels[number], Proportion(right, shown), Proportion(right, given))
            for number, (right, shown, given) in counts
            if shown or given
        ]

    def _predicted(self, answer: SampleAnswer) -> frozenset[int]:
        return predicted(answer.probabilities, multi_label=self.multi_label)


def predict_each(
    ensembles: Sequence[str],
    address: str,
    samples: Sequence[Sample],
    resize: Resize | None = None,
    *,
    batch: int = BATCH,
) -> Iterator[SampleAnswers | NotCompared]:
    """Have the Triton at an address classify the samples by each ensemble, in calls of `batch` images.

    Yields the answers in order; raises TritonRefused. Each sample is read once, and large images are resized first, as
    in the gateway.
    """
    read, connections = reader(resize), local()
    opened: list[BlockingTriton] = []

    def answer(some: Sequence[Sample]) -> list[SampleAnswers | NotCompared]:
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


def _answers(sample: Sample, results: Sequence[Answers], row: int) -> SampleAnswers | NotCompared:
    """The answers for one image of a batch, by each ensemble."""
    for result in results:
        if status := int(result.status[row]):
            return NotCompared(sample.path, f"the preprocessor gives it status {status}")
    return tuple(
        SampleAnswer(sample, each.values[row], None if each.embeddings is None else each.embeddings[row])
        for each in results
    )
