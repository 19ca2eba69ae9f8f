"""Masked copies of an image: the scores of a model for them show which parts of the image carry a class."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from gateway.ingest.decode_budget import Size, shrunk_bytes
from gateway.ingest.image_info import ImageInfo

SEED = 20_180_619
"""Seed of all random masks, so that the same image always gets the same masks."""
RISE_MAP_SIDE = 28
"""Rows and columns of the heat map of random masks, whose cells are shifted and therefore show finer parts."""
OVERLAY_SIDE = 448
"""Longer side of the overlay in pixels."""
MIN_GRID, MAX_GRID = 2, 32
"""Cells of a mask on each side."""
_EPSILON = 1e-9


class Method(StrEnum):
    """How an image is masked: one window after the other, or random parts of it (RISE, Petsiuk et al. 2018)."""

    # The OpenAPI document names this class, and generated clients with it.
    OCCLUSION = "occlusion"
    RISE = "rise"


DEFAULT_GRID = {Method.OCCLUSION: 14, Method.RISE: 8}
DEFAULT_MASKS = 500
"""Random masks, if the request does not set their number."""


@dataclass(frozen=True, slots=True)
class Masking:
    """The masks of one image: `count` of them, of `grid` × `grid` cells.

    occlusion   each hides a window of 2 × 2 cells; each cell is in four windows
    rise        each hides half of its cells, at random; they are enlarged bilinearly and shifted at random
    """

    method: Method
    grid: int
    count: int

    @classmethod
    def of(cls, method: Method, grid: int | None, count: int) -> "Masking":
        """The masks of a request; `count` is for random masks only."""
        grid = grid or DEFAULT_GRID[method]
        return cls(method, grid, (grid + 1) ** 2 if method is Method.OCCLUSION else count)

    @property
    def images(self) -> int:
        """Images to classify: the image itself, and a copy for each mask."""
        return self.count + 1

    @property
    def map_side(self) -> int:
        """Rows and columns of the heat map."""
        return self.grid if self.method is Method.OCCLUSION else RISE_MAP_SIDE

    def values(self, scores: NDArray[np.float64], visible: NDArray[np.float64]) -> NDArray[np.float32]:
        """The heat map, fp32 [map_side, map_side], of the scores [count] of the copies.

        `visible` [count, map_side, map_side] says how visible each cell is in each copy, from 0 to 1.
        """
        shown, weight = np.tensordot(scores, visible, 1), visible.sum(axis=0)
        hidden = scores.sum() - shown
        values = shown / np.maximum(weight, _EPSILON) - hidden / np.maximum(self.count - weight, _EPSILON)
        return np.asarray(values, np.float32)

    def total_bytes(self, info: ImageInfo, size: Size) -> int:
        """Bytes of all images to classify."""
        return self.images * shrunk_bytes(info, size)


@dataclass(frozen=True, slots=True, eq=False)
class HeatMap:
    """Which parts of an upright image carry a class.

    `values` are fp32 [rows, columns]: the mean score of the class in the masked images in which a cell is visible, less
    the mean of those in which it is hidden. `overlay` is a PNG, RGBA, in the image's proportions, to lay over it.
    """

    values: NDArray[np.float32]
    overlay: bytes
