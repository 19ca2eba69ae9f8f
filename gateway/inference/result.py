"""The result of each uploaded file."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gateway.errors import GatewayError
from gateway.inference.backend import Row
from gateway.inference.selection import Prediction


@dataclass(slots=True)
class Result:
    """The result of one uploaded file: its name, its width and height in upright pixels, if known, and its row.

    It keeps none of the image's bytes. A result of several images is a subclass, such as that of an animation.
    """

    index: int
    filename: str
    width: int | None = None
    height: int | None = None
    row: Row = field(default_factory=Row, repr=False)

    @property
    def error(self) -> GatewayError | None:
        """See Row.error."""
        return self.row.error

    @property
    def predictions(self) -> Sequence[Prediction]:
        """The classes of the image, by falling score; none if there is an error, or `scores`."""
        return self.row.predictions

    @property
    def scores(self) -> NDArray[np.float32] | None:
        """See Row.scores."""
        return self.row.scores

    @property
    def embedding(self) -> NDArray[np.float32] | None:
        """See Row.embedding."""
        return self.row.embedding

    @property
    def model_version(self) -> str | None:
        """The version that answered; None if none did."""
        return self.row.model_version or None

    @property
    def extent(self) -> int:
        """Size of the response in predictions; ten numbers of an embedding count as one."""
        embedding = self.row.embedding
        return self.size[0] + (0 if embedding is None else len(embedding) // 10)

    @property
    def rows(self) -> Sequence[Row]:
        """What counts as an image: its row, or those of its images."""
        return (self.row,)

    @property
    def size(self) -> tuple[int, int]:
        """How many predictions and how many results it has in the native format: its own, and those of its images."""
        return len(self.row.predictions), 1

    def members(self) -> dict[str, object]:
        """The members of the native format beside those of every result, as plain data."""
        return {}
