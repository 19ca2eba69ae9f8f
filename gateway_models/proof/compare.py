"""`gateway model compare`: two versions of a model on the same images, and whether their difference is significant."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gateway.errors import UserError
from gateway.ingest.resizing import Resize
from gateway_client.files import MAX_FILE_BYTES, read_file
from gateway_models.proof.dataset import Sample
from gateway_models.proof.evaluate import SampleAnswer, predict_each
from gateway_models.proof.image_files import NotCompared
from gateway_models.proof.over_http import ImageRefused, OverHttp
from gateway_predictions.shares import wilson

Probabilities = NDArray[np.float32]
CHANCE = 0.05
"""The significance level: a p-value below it counts as a real difference."""


class NotComparable(UserError):
    """The two versions have no classes in common."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Both versions' answers for one image: probabilities fp32 [classes]."""

    sample: Sample
    first: Probabilities
    second: Probabilities

    @property
    def same(self) -> bool:
        """Whether both have the same top-1 class."""
        return int(self.first.argmax()) == int(self.second.argmax())

    @property
    def largest(self) -> float:
        """The largest difference of a probability."""
        return float(np.abs(self.first - self.second).max())

    @property
    def first_right(self) -> bool:
        """Whether the first version's top-1 class is a true one."""
        return int(self.first.argmax()) in self.sample.classes

    @property
    def second_right(self) -> bool:
        """Whether the second version's top-1 class is a true one."""
        return int(self.second.argmax()) in self.sample.classes


@dataclass(frozen=True)
class Compared:
    """All pairs of a run; `labelled` means that the true classes are known."""

    pairs: Sequence[Pair]
    refused: Sequence[NotCompared] = field(default=())
    labelled: bool = False

    @cached_property
    def different(self) -> Sequence[Pair]:
        """The pairs with different top-1 classes, largest difference first."""
        return sorted((pair for pair in self.pairs if not pair.same), key=lambda pair: pair.largest, reverse=True)

    @property
    def disagreement(self) -> float:
        """The share of images with different top-1 classes; 0 if there are no images."""
        return len(self.different) / max(1, len(self.pairs))

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of `disagreement`, by Wilson."""
        return wilson(len(self.different), len(self.pairs))

    @property
    def differences(self) -> NDArray[np.float64]:
        """The largest difference of a probability in each image, in descending order: fp64 [pairs]."""
        return np.sort(np.array([pair.largest for pair in self.pairs]))[::-1]

    @property
    def accuracy(self) -> tuple[float, float]:
        """Each version's share of correct images."""
        count = max(1, len(self.pairs))
        return sum(pair.first_right for pair in self.pairs) / count, sum(
            pair.second_right for pair in self.pairs
        ) / count

    @property
    def only(self) -> tuple[int, int]:
        """The number of images that only the first version has right, and only the second."""
        return (
            sum(pair.first_right and not pair.second_right for pair in self.pairs),
            sum(pair.second_right and not pair.first_right for pair in self.pairs),
        )

    @property
    def chance(self) -> float:
        """The probability of such a difference in accuracy if neither version is better; see `mcnemar`."""
        return mcnemar(*self.only)

    def holds(self, tolerance: float | None) -> bool:
        """Whether images were compared and the share with different top-1 classes is within the tolerance."""
        return bool(self.pairs) and (tolerance is None or self.disagreement <= tolerance)


def compare(
    ensembles: tuple[str, str], address: str, samples: Sequence[Sample], resize: Resize | None = None
) -> Iterator[Pair | NotCompared]:
    """Have the Triton at an address classify each image with both versions; raises UserError."""
    for first, second in predict_each(ensembles, address, samples, resize):
        yield _paired(first, second)


def compare_over_http(first: OverHttp, second: OverHttp, samples: Sequence[Sample]) -> Iterator[Pair | NotCompared]:
    """Have a gateway classify each file, sent unchanged, with both versions; raises UserError."""
    for sample in samples:
        try:
            data = read_file(sample.path, MAX_FILE_BYTES)
            answers = [SampleAnswer(sample, version.scores(data)) for version in (first, second)]
        except (ImageRefused, OSError) as exc:
            yield NotCompared(sample.path, str(exc))
            continue
        yield _paired(*answers)


def mcnemar(only_first: int, only_second: int) -> float:
    """The two-sided p-value of McNemar's exact test, from the images that only one version has right.

    Images that both have right, or neither, carry no information. If neither is better, each of the others is a coin
    toss, and this is the probability of tosses at least as one-sided (Q. McNemar, Psychometrika 12, 1947).
    """
    throws, fewer = only_first + only_second, min(only_first, only_second)
    ways = sum(_binomials(throws, fewer))
    return float(min(1.0, 2 * ways / 2**throws))


def _binomials(of: int, most: int) -> Iterator[int]:
    """The binomial coefficients of 0 to `most` out of `of`."""
    ways = 1
    for taken in range(most + 1):
        yield ways
        ways = ways * (of - taken) // (taken + 1)


def _paired(first: SampleAnswer, second: SampleAnswer) -> Pair | NotCompared:
    if first.probabilities is None or second.probabilities is None:
        return NotCompared(first.sample.path, first.reason or second.reason)
    if first.probabilities.shape != second.probabilities.shape:
        counts = f"{len(first.probabilities)} and {len(second.probabilities)}"
        raise NotComparable(f"the versions have {counts} classes, and cannot be compared")
    return Pair(first.sample, first.probabilities, second.probabilities)
