"""Masks the parts of one image in turn, and draws the heat map of a class from its scores."""

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway_decoder.decoding import Ppm
from gateway_decoder.frames import SLICE_SECONDS, DecodedFrame
from gateway_decoder.opencv import cv2
from gateway_plugins.media.masking import OVERLAY_SIDE, SEED, Masking, Method

_MOST_OPAQUE = 0.75
"""Opacity of the overlay at its hottest point."""
_FAINTEST = 1e-4
"""A difference of scores that is never drawn at full strength: without one, rounding errors would be."""
_EPSILON = 1e-9
_COPIES_AT_ONCE = 500


class MaskedImage:
    """The image itself, then a copy for each mask: what is hidden has the mean colour of the image.

    `step` gives the next one as a frame, from number `first` on. `draw` makes the heat map of all of them.
    """

    def __init__(self, image: Ppm, masking: Masking, first: int = 0) -> None:
        self._pixels = image.pixels
        self._masking = masking
        self._mean = image.pixels.mean(axis=(0, 1), dtype=np.float64).astype(np.float32)
        side = masking.map_side
        self._visible: NDArray[np.float32] = np.empty((masking.count, side, side), np.float32)
        """For each masked copy so far, how visible each cell of the heat map is, from 0 to 1."""
        self._is_made = np.zeros(masking.count, np.bool_)
        """The copies for which it is known: not for those before `first`, until they are drawn."""
        self._given = first

    def step(self) -> DecodedFrame | bool:
        """The next image; False after the last one."""
        index = self._given
        if index == self._masking.images:
            return False
        self._given += 1
        pixels = self._pixels if index == 0 else self._masked(index - 1)
        return DecodedFrame(index, 0.0, Ppm(pixels))

    def draw(self, scores: NDArray[np.float32]) -> bytes | None:
        """The values of the heat map, fp32 [side, side], and then its overlay; None to be called again.

        `scores` has one for each image.
        """
        ends = time.process_time() + SLICE_SECONDS
        for number in np.flatnonzero(~self._is_made).tolist():
            self._mask(number)
            if time.process_time() > ends:
                return None
        values = self._values(scores[1:].astype(np.float64))
        height, width = self._pixels.shape[:2]
        return values.tobytes() + overlay_of(values, height, width, least=_FAINTEST)

    def _mask(self, number: int) -> NDArray[np.float32]:
        self._is_made[number] = True
        return self._window(number) if self._masking.method is Method.OCCLUSION else self._random(number)

    def _masked(self, number: int) -> NDArray[np.uint8]:
        mask = self._mask(number)
        pixels: NDArray[np.float32] = self._mean + (self._pixels - self._mean) * mask[:, :, np.newaxis]
        return np.rint(pixels).astype(np.uint8)

    def _window(self, number: int) -> NDArray[np.float32]:
        """A mask that hides 2 × 2 cells, or the part of them that is within the image."""
        grid = self._masking.grid
        height, width = self._pixels.shape[:2]
        first_row, first_column = (each - 1 for each in divmod(number, grid + 1))
        top, bottom = max(first_row, 0), min(first_row + 2, grid)
        left, right = max(first_column, 0), min(first_column + 2, grid)
        self._visible[number] = 1
        self._visible[number, top:bottom, left:right] = 0
        rows, columns = (np.rint(np.linspace(0, side, grid + 1)).astype(int) for side in (height, width))
        mask = np.ones((height, width), np.float32)
        mask[rows[top] : rows[bottom], columns[left] : columns[right]] = 0
        return mask

    def _random(self, number: int) -> NDArray[np.float32]:
        """A mask of RISE: cells, half of them visible at random, enlarged bilinearly and shifted by up to one cell."""
        generator = np.random.default_rng((SEED, number))
        grid, side = self._masking.grid, self._masking.map_side
        height, width = self._pixels.shape[:2]
        cell_height, cell_width = -(-height // grid), -(-width // grid)
        cells = (generator.random((grid, grid)) < 0.5).astype(np.float32)
        size = (grid + 1) * cell_width, (grid + 1) * cell_height
        large = cv2.resize(cells, size, interpolation=cv2.INTER_LINEAR)
        top, left = generator.integers(0, cell_height), generator.integers(0, cell_width)
        mask: Any = large[top : top + height, left : left + width]
        self._visible[number] = cv2.resize(mask, (side, side), interpolation=cv2.INTER_AREA)
        return np.ascontiguousarray(mask)

    def _values(self, scores: NDArray[np.float64]) -> NDArray[np.float32]:
        count, side = len(scores), self._masking.map_side
        shown, weight = np.zeros((side, side)), np.zeros((side, side))
        for start in range(0, count, _COPIES_AT_ONCE):  # in fp64, all of them may exceed this process's memory
            end = min(start + _COPIES_AT_ONCE, count)
            visible = self._visible[start:end].astype(np.float64)
            shown += np.tensordot(scores[start:end], visible, 1)
            weight += visible.sum(axis=0)
        hidden = scores.sum() - shown
        values: NDArray[np.float64] = shown / np.maximum(weight, _EPSILON) - hidden / np.maximum(
            count - weight, _EPSILON
        )
        return values.astype(np.float32)


def overlay_of(values: NDArray[np.float32], height: int, width: int, *, least: float = 0.0) -> bytes:
    """A heat map, fp32 [rows, columns], as a PNG to lay over an image of `height` × `width` pixels.

    It is the more opaque the more a part raises the score, and transparent where a part lowers it. The largest value,
    or `least` if that is larger, has full strength.
    """
    scale = OVERLAY_SIDE / max(height, width)
    size = max(round(width * scale), 1), max(round(height * scale), 1)
    heat = np.maximum(values, 0) / max(float(values.max()), least, np.finfo(np.float32).tiny)
    heat = np.clip(cv2.resize(heat, size, interpolation=cv2.INTER_CUBIC), 0, 1)
    colours = cv2.applyColorMap(np.rint(heat * 255).astype(np.uint8), cv2.COLORMAP_INFERNO)
    opacity = np.rint(heat * (255 * _MOST_OPAQUE)).astype(np.uint8)
    written, png = cv2.imencode(".png", np.dstack((colours, opacity)))
    assert written
    return png.tobytes()
