"""One class that a model sees in an image."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prediction:
    """One class and its score; `label` is the class id as text where the model has no labels."""

    label: str
    class_id: int
    score: float
