"""Masked copies of an image: the scores of a model for them show which parts of the image carry a class."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.ingest.image_formats import Header, Size, shrunk_bytes

SEED = 20_180_619
"""Seed of all masks, so that the same image always gets the same masks."""
MAP_SIDE = 28
"""Rows and columns of the heat map: more than cells, which are shifted and therefore show finer parts."""
OVERLAY_SIDE = 448
"""Longer side of the overlay in pixels."""
MIN_GRID, MAX_GRID = 2, 32
"""Cells of a mask on each side."""
_EPSILON = 1e-9


DEFAULT_GRID = 8
DEFAULT_MASKS = 500
"""Masks, if the request does not set their number."""


@dataclass(frozen=True, slots=True)
class Masking:
    """The masks of one image, as RISE has them (Petsiuk et al. 2018): `count` of them, of `grid` × `grid` cells.

    Each hides half of its cells, at random; they are enlarged bilinearly and shifted at random.
    """

    grid: int = DEFAULT_GRID
    count: int = DEFAULT_MASKS

    @property
    def images(self) -> int:
        """Images to classify: the image itself, and a copy for each mask."""
        return self.count + 1

    def values(self, scores: NDArray[np.float64], visible: NDArray[np.float64]) -> NDArray[np.float32]:
        """The heat map, fp32 [MAP_SIDE, MAP_SIDE], of the scores [count] of the copies.

        `visible` [count, MAP_SIDE, MAP_SIDE] says how visible each cell is in each copy, from 0 to 1.
        """
        shown, weight = np.tensordot(scores, visible, 1), visible.sum(axis=0)
        hidden = scores.sum() - shown
        values = shown / np.maximum(weight, _EPSILON) - hidden / np.maximum(self.count - weight, _EPSILON)
        return np.asarray(values, np.float32)

    def total_bytes(self, info: Header, size: Size) -> int:
        """Bytes of all images to classify."""
        return self.images * shrunk_bytes(info, size)


@dataclass(frozen=True, slots=True, eq=False)
class HeatMap:
    """Which parts of an upright image carry a class.

    `values` are fp32 [rows, columns]: the mean score of the class with the cell visible, minus the mean score with it
    hidden. `overlay` is a PNG, RGBA, in the image's proportions, to lay over it.
    """

    values: NDArray[np.float32]
    overlay: bytes
