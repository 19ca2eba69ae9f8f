"""The result of each uploaded file."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gateway.errors import GatewayError
from gateway.inference.prediction import NO_PREDICTIONS, Prediction, Predictions


@dataclass(slots=True, eq=False)
class Answer:
    """What a model sees in one image."""

    predictions: Sequence[Prediction] = NO_PREDICTIONS
    scores: NDArray[np.float32] | None = None
    """Instead of predictions, if the request has no selection: fp32 [classes], by class id."""
    embedding: NDArray[np.float32] | None = None
    """The embedding, fp32 [size], if the request asks for it and the model has one."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Answer) and self.predictions == other.predictions

    def __hash__(self) -> int:
        return hash(tuple(self.predictions))


NO_ANSWER = Answer()


@dataclass(slots=True)
class Result:
    """The result of one uploaded file: an answer or an error; width and height in upright pixels, if known.

    A result of several images is a subclass, such as that of an animation.
    """

    index: int
    filename: str
    width: int | None = None
    height: int | None = None
    answer: Answer = field(default=NO_ANSWER, repr=False)
    error: GatewayError | None = None
    model_version: str | None = None
    multi_label: bool = False
    damaged: bool = False
    """Whether the image was decoded although its data is damaged: some of its pixels are wrong."""

    @property
    def predictions(self) -> Sequence[Prediction]:
        """The classes of the image, by falling score; none if there is an error, or `scores`."""
        return self.answer.predictions

    @property
    def scores(self) -> NDArray[np.float32] | None:
        """See Answer.scores."""
        return self.answer.scores

    @property
    def embedding(self) -> NDArray[np.float32] | None:
        """See Answer.embedding."""
        return self.answer.embedding

    @property
    def extent(self) -> int:
        """Size of the response in predictions; ten numbers of an embedding count as one."""
        embedding = self.answer.embedding
        return self.prediction_count + (0 if embedding is None else len(embedding) // 10)

    @property
    def top_score(self) -> float | None:
        """The highest score of the result; None if it has none."""
        scores = self.answer.scores
        if scores is not None:
            return float(scores.max(initial=0.0))
        predictions = self.answer.predictions
        return max(
            predictions.scores if isinstance(predictions, Predictions) else [each.score for each in predictions],
            default=None,
        )

    @property
    def images(self) -> "Sequence[Result]":
        """The results that count as images."""
        return (self,)

    @property
    def prediction_count(self) -> int:
        """The number of predictions, of all images."""
        return len(self.answer.predictions)

    @property
    def parts(self) -> int:
        """How many results it has in the native format: its own, and those of its images."""
        return 1

    def members(self) -> dict[str, object]:
        """The members of the native format beside those of every result, as plain data."""
        return {}
