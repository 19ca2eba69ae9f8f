"""What an explanation asks for and returns, and the scores of its masked images until all are there."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gateway.errors import GatewayError, InferenceFailed, UndecodableImage
from gateway.ingest.masking import HeatMap, Masking

if TYPE_CHECKING:
    from gateway.inference.request_spec import Result

MAX_SIDE = 384
"""Shorter side in pixels of a masked image, if the input size of its model is unknown."""


PREVIEW_MASKS = 150
"""Masked copies from which the first heat map is drawn, and by which each further one has more."""


@dataclass(slots=True)
class Progress:
    """How many of an explanation's images have a score, and the latest heat map of those."""

    done: int = 0
    preview: "Explanation | None" = None


@dataclass(frozen=True, slots=True)
class ExplanationSpec:
    """Explain the score of a class: how the image is masked, and the class, None for the likeliest one."""

    masking: Masking
    max_bytes: int
    """Bytes of all masked images; TooCostly beyond."""
    class_id: int | None = None
    previews: bool = False
    """Whether heat maps are drawn from each PREVIEW_MASKS further copies, before all are there."""
    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """Which parts of an image carry the score of a class."""

    class_id: int
    score: float
    """The score of the class for the image itself."""
    masking: Masking
    masks: int
    """Masked copies that the heat map was drawn from."""
    heat: HeatMap


class MaskScores:
    """The scores of one class for an image and its masked copies, as they arrive.

    The image itself comes first, since the class may be its likeliest one. An error of any copy is that of the whole.
    """

    def __init__(self, spec: ExplanationSpec) -> None:
        self._spec = spec
        self._scores: NDArray[np.float32] = np.zeros(spec.masking.images, np.float32)
        self._begun = 0
        self._known = np.zeros(spec.masking.images, np.bool_)
        self._first_unknown = 0
        self._missing = spec.masking.images
        self._error: GatewayError | None = None
        self._changed = asyncio.Event()
        self.class_id = spec.class_id
        self.model_version: str | None = None

    def begin(self) -> "Callable[[Result], None]":
        """The callback for the result of the next image."""
        index = self._begun
        self._begun += 1

        def take(result: "Result") -> None:
            try:
                self._scores[index] = self._score_of(result)
                self._known[index] = True
            except GatewayError as error:
                self._error = self._error or error
            self._missing -= 1
            self._spec.progress.done += 1
            self._changed.set()

        return take

    async def wait(self, *, most_missing: int) -> NDArray[np.float32]:
        """The scores once at most so many are missing; raises the first error of an image at once."""
        while self._error is None and self._missing > most_missing:
            self._changed.clear()
            await self._changed.wait()
        self.check()
        return self._scores

    def first(self) -> NDArray[np.float32]:
        """The scores of the image and of the first copies, up to one that is missing."""
        while self._first_unknown < len(self._known) and self._known[self._first_unknown]:
            self._first_unknown += 1
        return self._scores[: self._first_unknown]

    def check(self) -> None:
        """Raise the first error of an image, if there was one."""
        if self._error is not None:
            raise self._error

    def _score_of(self, result: "Result") -> float:
        """The score of the class; raises the image's error, or InferenceFailed if the score is no number."""
        if result.error is not None:
            raise result.error
        if result.scores is None:
            raise UndecodableImage
        if self.class_id is None:
            self.class_id = int(result.scores.argmax())
        self.model_version = self.model_version or result.model_version
        if self.class_id >= len(result.scores):
            raise InferenceFailed
        score = float(result.scores[self.class_id])
        if not np.isfinite(score):
            raise InferenceFailed
        return score
