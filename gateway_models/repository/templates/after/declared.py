"""A declared step: calibration, own classes, and `other` below a threshold, in this order.

declared.json in the same folder has its numbers. Needs numpy alone.
"""

import json
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
DECLARED = "declared.json"
LEAST = float(np.finfo(np.float32).tiny)
"""A probability below it counts as it: softmax rounds smaller ones to 0, which has no logarithm."""
REFUSED = 0.75
"""The score that `other` gets for an image below the threshold. The classes keep the rest, in proportion."""
Scores = NDArray[np.float64]


class Declared:
    """The step of a folder with declared.json."""

    def __init__(self, folder: Path) -> None:
        numbers = json.loads((folder / DECLARED).read_text())
        self.multi_label: bool = numbers["multi_label"]
        self.temperature, self.threshold = float(numbers["temperature"]), float(numbers["threshold"])
        self.bias = np.array(numbers["bias"], np.float64)
        self.classes = [np.array(members, np.intp) for members in numbers["classes"]]
        """For each own class, the numbers of the network's classes in it; [] keeps the network's classes."""
        self.has_other: bool = numbers["has_other"]

    def __call__(self, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """Scores [N, own classes, maybe other] for the network's, fp32 [N, classes]."""
        found = self.grouped(self.calibrated(scores))
        count = len(self.classes) or scores.shape[1]
        answers = np.zeros((len(scores), count + self.has_other), np.float64)
        answers[:, : found.shape[1]] = found
        if self.threshold:
            unsure = answers[:, :count].max(axis=1) < self.threshold
            answers[unsure] *= 1 - REFUSED
            answers[unsure, -1] += REFUSED
        return answers.astype(np.float32)

    def calibrated(self, scores: NDArray[np.float32]) -> Scores:
        """The scores after temperature and bias, fp64 [N, classes].

        Exact on probabilities: the logarithm of a softmax is the logits minus one number for all classes of an image,
        which the following softmax removes; the logit undoes a sigmoid.
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
        if not self.classes:
            return scores
        groups = list(self.classes)
        if self.has_other:
            groups.append(np.setdiff1d(np.arange(scores.shape[1]), np.concatenate(self.classes)))
        together = partial(np.max, initial=0.0) if self.multi_label else np.sum
        return np.stack([together(scores[:, group], axis=1) for group in groups], axis=1)


_declared = Declared(HERE) if (HERE / DECLARED).is_file() else None


def scores_of(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """The step of this folder."""
    assert _declared is not None
    return _declared(scores)
