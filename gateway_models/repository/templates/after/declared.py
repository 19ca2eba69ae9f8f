"""A declared step: calibration, own classes, a refusal by embeddings, and `other` below a threshold, in this order.

declared.json beside this file has its numbers, and known.npy the embeddings of known images, if it refuses unknown
ones. Needs numpy alone.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
DECLARED, KNOWN = "declared.json", "known.npy"
LEAST = float(np.finfo(np.float32).tiny)
"""A probability below it counts as it: softmax rounds smaller ones to 0, which has no logarithm."""
REFUSED = 0.75
"""The score that `other` or `unknown` gets for an image that it refuses. The classes keep the rest, in proportion."""
Scores = NDArray[np.float64]


class Declared:
    """The step of a folder with declared.json."""

    def __init__(self, folder: Path) -> None:
        numbers = json.loads((folder / DECLARED).read_text())
        self.multi_label: bool = numbers["multi_label"]
        self.temperature, self.threshold = float(numbers["temperature"]), float(numbers["threshold"])
        self.bias = np.array(numbers["bias"], np.float64)
        self.leaves = [np.array(members, np.intp) for members in numbers["leaves"]]
        """For each own class made of the network's, their numbers; [] keeps the network's classes."""
        self.inner: list[dict[str, Any]] = numbers["inner"]
        """Own classes made of other own classes: their `depth`, and the numbers of the `leaves` in each."""
        self.has_other: bool = numbers["has_other"]
        self.nearest: float | None = numbers["nearest"]
        """The least cosine to a known image; None refuses none by its embedding."""
        self.known = np.load(folder / KNOWN) if self.nearest is not None else None

    def __call__(self, scores: NDArray[np.float32], embeddings: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """Scores [N, own classes, inner ones, other, unknown] for the network's, fp32 [N, classes]."""
        found = self.grouped(self.calibrated(scores))
        leaves = len(self.leaves) or scores.shape[1]
        other = leaves + len(self.inner)
        answers = np.zeros((len(scores), other + self.has_other + (self.nearest is not None)), np.float64)
        answers[:, :leaves] = found[:, :leaves]
        if found.shape[1] > leaves:  # the rest of the network's classes
            answers[:, other] = found[:, leaves]
        strange = self._is_strange(embeddings, len(scores))
        if self.threshold:
            for row in np.flatnonzero((answers[:, :leaves].max(axis=1) < self.threshold) & ~strange):
                self._fall_back(answers[row], leaves, other)
        answers[strange] *= 1 - REFUSED
        answers[strange, -1] += REFUSED
        return answers.astype(np.float32)

    def calibrated(self, scores: NDArray[np.float32]) -> Scores:
        """The scores after temperature and bias, fp64 [N, classes].

        Exact on probabilities: the logarithm of a softmax is the logits less one number for all classes of an image,
        which the softmax that follows removes; that of a sigmoid is undone by the logit.
        """
        values = scores.astype(np.float64)
        if self.temperature == 1 and not self.bias.any():
            return values
        logits = np.log(np.clip(values, LEAST, None))
        if self.multi_label:
            logits -= np.log(np.clip(1 - values, LEAST, None))
        logits = logits / self.temperature + (self.bias if len(self.bias) else 0)
        if self.multi_label:
            return np.asarray(1 / (1 + np.exp(-logits)))
        logits -= logits.max(axis=1, keepdims=True)
        powers = np.exp(logits)
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def grouped(self, scores: Scores) -> Scores:
        """The scores of the own classes, and of the rest if there is one: sums; for a multi-label model maxima."""
        if not self.leaves:
            return scores
        groups = list(self.leaves)
        if self.has_other:
            groups.append(np.setdiff1d(np.arange(scores.shape[1]), np.concatenate(self.leaves)))
        together = partial(np.max, initial=0.0) if self.multi_label else np.sum
        return np.stack([together(scores[:, group], axis=1) for group in groups], axis=1)

    def _is_strange(self, embeddings: NDArray[np.float32] | None, count: int) -> NDArray[np.bool_]:
        """Which images are farther from every known one than the known ones are from each other."""
        if self.known is None or self.nearest is None or embeddings is None:
            return np.zeros(count, bool)
        # One row at a time: as a matrix product, the sums would depend on the batch in their last bits.
        nearest = [np.max(self.known @ unit(row)) for row in embeddings]
        return np.array(nearest) < self.nearest

    def _fall_back(self, answer: Scores, leaves: int, other: int) -> None:
        """Answer an image without a sure class with the innermost class of classes that is, or else with `other`."""
        sums = [(each["depth"], float(answer[each["leaves"]].sum()), number) for number, each in enumerate(self.inner)]
        sure = [found for found in sums if found[1] >= self.threshold]
        if sure:
            _, total, number = max(sure)
            answer[self.inner[number]["leaves"]] = 0
            answer[leaves + number] = total
            return
        answer *= 1 - REFUSED
        answer[other] += REFUSED


def unit(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """A vector scaled to length 1; zeros stay."""
    return np.asarray(vector / max(float(np.linalg.norm(vector)), LEAST), np.float32)


_declared = Declared(HERE) if (HERE / DECLARED).is_file() else None


def scores_of(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """A step that needs no embeddings."""
    assert _declared is not None
    return _declared(scores, None)


def scores_and_refusals(scores: NDArray[np.float32], embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
    """A step that refuses images by their embeddings."""
    assert _declared is not None
    return _declared(scores, embeddings)
