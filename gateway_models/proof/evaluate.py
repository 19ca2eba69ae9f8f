"""`gateway model evaluate`: the accuracy of the served model."""

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from threading import local

import numpy as np
from numpy.typing import NDArray

from gateway.ingest.resizing import Resize
from gateway_models.blocking_triton import BlockingTriton
from gateway_models.proof.calibration import Calibration, calibration_of
from gateway_models.proof.dataset import Sample
from gateway_models.proof.image_files import ImageFile, NotCompared, read_image_files

BATCH = 8
CALLERS = 4
"""Concurrent calls to Triton: enough to keep both steps of an ensemble busy."""
THRESHOLD = 0.5
"""The probability from which a multi-label model predicts a class."""


@dataclass(frozen=True, slots=True)
class SampleAnswer:
    """The served answer for one sample: probabilities fp32 [classes], or the reason why there are none."""

    sample: Sample
    probabilities: NDArray[np.float32] | None
    reason: str = ""
    embedding: NDArray[np.float32] | None = None
    """fp32 [size], if the model gives embeddings."""

    @property
    def answered(self) -> bool:
        """Whether there are probabilities."""
        return self.probabilities is not None


def predicted(scores: NDArray[np.float32], *, multi_label: bool) -> frozenset[int]:
    """The classes of an answer: the top-1 class, or those from THRESHOLD for a multi-label model."""
    return frozenset(np.flatnonzero(scores >= THRESHOLD).tolist() if multi_label else [int(scores.argmax())])


def left_out(answers: Iterable[SampleAnswer]) -> list[NotCompared]:
    """The samples without probabilities."""
    return [NotCompared(each.sample.path, each.reason) for each in answers if not each.answered]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The answers of a model with this number of classes, and the images without one."""

    classes: int
    multi_label: bool
    answers: Sequence[SampleAnswer]
    refused: Sequence[NotCompared] = ()
    seconds: float = 0.0

    @classmethod
    def of(cls, answers: Iterable[tuple[SampleAnswer, ...]], classes: int, *, multi_label: bool) -> "Evaluation":
        """The answers of `predict_each` by one ensemble, with the time that they take."""
        started = time.perf_counter()
        found = [answer for (answer,) in answers]
        seconds = time.perf_counter() - started
        return cls(classes, multi_label, [each for each in found if each.answered], left_out(found), seconds)

    @property
    def images_per_second(self) -> float:
        """Throughput, including decoding."""
        return len(self.answers) / self.seconds if self.seconds else 0.0

    def top(self, k: int) -> float:
        """The share of images with a true class among the k likeliest."""
        hits = sum(bool(answer.sample.classes & set(_likeliest(answer, k))) for answer in self.answers)
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

    def per_class(self) -> list["ClassScore"]:
        """Precision and recall of each class that is true or predicted in any image."""
        true, predicted, both = (np.zeros(self.classes, int) for _ in range(3))
        for answer in self.answers:
            found = self._predicted(answer)
            for number in answer.sample.classes:
                true[number] += 1
                both[number] += number in found
            for number in found:
                predicted[number] += 1
        seen = np.flatnonzero(true + predicted)
        return [ClassScore(int(n), int(true[n]), int(predicted[n]), int(both[n])) for n in seen]

    def _predicted(self, answer: SampleAnswer) -> frozenset[int]:
        assert answer.probabilities is not None
        return predicted(answer.probabilities, multi_label=self.multi_label)


@dataclass(frozen=True, slots=True)
class ClassScore:
    """A class, with the number of images that show it, of those predicted to, and of those where both hold."""

    number: int
    true: int
    predicted: int
    both: int

    @property
    def precision(self) -> float | None:
        """The share of correct predictions of this class; None if there are no predictions."""
        return self.both / self.predicted if self.predicted else None

    @property
    def recall(self) -> float | None:
        """The share of the class's images that were predicted as such; None if there are no images."""
        return self.both / self.true if self.true else None


def predict_each(
    ensembles: Sequence[str],
    address: str,
    samples: Sequence[Sample],
    resize: Resize | None = None,
    *,
    batch: int = BATCH,
) -> Iterator[tuple[SampleAnswer, ...]]:
    """Have the Triton at an address classify the samples by each ensemble, in calls of `batch` images.

    Yields the answers in order; raises TritonRefused. Each sample is read once, and large images are resized first, as
    in the gateway.
    """
    connections = local()
    opened: list[BlockingTriton] = []

    def answer(some: Sequence[Sample]) -> list[tuple[SampleAnswer, ...]]:
        if not hasattr(connections, "triton"):
            connections.triton = BlockingTriton(address)
            opened.append(connections.triton)
        inputs = list(read_image_files((sample.path for sample in some), resize))
        each = [_predict_batch(connections.triton, ensemble, some, inputs) for ensemble in ensembles]
        return list(zip(*each, strict=True))

    try:
        with ThreadPoolExecutor(CALLERS) as pool:
            for answers in pool.map(answer, _batches(samples, batch)):
                yield from answers
    finally:
        for triton in opened:
            triton.close()


def _predict_batch(
    triton: BlockingTriton, ensemble: str, samples: Sequence[Sample], inputs: Sequence[ImageFile]
) -> list[SampleAnswer]:
    fit = [file.payload for file in inputs if not file.reason]
    result = triton.predict(ensemble, fit) if fit else None
    answers, row = [], 0
    for sample, file in zip(samples, inputs, strict=True):
        if file.reason or result is None:
            answers.append(SampleAnswer(sample, None, file.reason))
            continue
        status = int(result.status[row])
        if status:
            answers.append(SampleAnswer(sample, None, f"the preprocessor gives it status {status}"))
        else:
            embedding = None if result.embeddings is None else result.embeddings[row]
            answers.append(SampleAnswer(sample, result.values[row], embedding=embedding))
        row += 1
    return answers


def _batches(samples: Sequence[Sample], size: int) -> Iterator[list[Sample]]:
    rest = iter(samples)
    while batch := list(islice(rest, size)):
        yield batch


def _likeliest(answer: SampleAnswer, k: int) -> list[int]:
    assert answer.probabilities is not None
    best: list[int] = np.argsort(answer.probabilities)[::-1][:k].tolist()
    return best
