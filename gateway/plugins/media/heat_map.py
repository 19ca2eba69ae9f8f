"""Masked copies of an image: the scores of a model for them show which parts of the image carry a class."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAP_SIDE = 28
"""Rows and columns of the heat map: more than cells, which are shifted and therefore show finer parts."""
OVERLAY_SIDE = 448
"""Longer side of the overlay in pixels."""
_EPSILON = 1e-9


def heat_values(scores: NDArray[np.float64], visible: NDArray[np.float64]) -> NDArray[np.float32]:
    """The heat map, fp32 [MAP_SIDE, MAP_SIDE], of the scores [masks] of the masked copies.

    `visible` [masks, MAP_SIDE, MAP_SIDE] says how visible each cell is in each copy, from 0 to 1.
    """
    shown, weight = np.tensordot(scores, visible, 1), visible.sum(axis=0)
    hidden = scores.sum() - shown
    values = shown / np.maximum(weight, _EPSILON) - hidden / np.maximum(len(scores) - weight, _EPSILON)
    return np.asarray(values, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class HeatMap:
    """Which parts of an upright image carry a class.

    `values` are fp32 [rows, columns]: the mean score of the class with the cell visible, minus the mean score with it
    hidden. `overlay` is a PNG, RGBA, in the image's proportions, to lay over it.
    """

    values: NDArray[np.float32]
    overlay: bytes
