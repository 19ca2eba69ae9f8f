"""Masks parts of an image, and draws the heat map of a class."""

import numpy as np
from numpy.typing import NDArray

from gateway.decoder.jobs import Made, as_wanted
from gateway.decoder.opencv import cv2
from gateway.ingest.image_formats import Size
from gateway.plugins.media.heat_map import MAP_SIDE, OVERLAY_SIDE

SEED = 20_180_619
"""Seed of all masks, so that the same image always gets the same masks."""
GRID = 8
"""Cells of a mask on each side."""

_MOST_OPAQUE = 0.75
"""Opacity of the overlay at its hottest point."""
_FULL = 0.1
"""A difference of scores that is drawn at full strength; a map with smaller ones is paler in proportion."""

Mask = NDArray[np.float32]


def mask(data: NDArray[np.uint8], number: int, size: Size) -> Made:
    """Masked copy `number` of a decoded image, followed by how visible each cell of the heat map is."""
    pixels = read_ppm(data.tobytes())  # a copy: the result overwrites the image's memory
    copy, visible = masked_copy(pixels, number)
    return Made(parts=(*as_wanted(copy, size), visible.data.cast("B")))


def draw(data: NDArray[np.uint8], width: int, height: int) -> Made:
    """The overlay of a heat map, fp32 [MAP_SIDE, MAP_SIDE], for an image of `width` × `height` pixels."""
    values = np.frombuffer(data.tobytes(), np.float32).reshape(MAP_SIDE, MAP_SIDE)
    return Made(parts=(overlay_of(values, height, width),))


def read_ppm(data: bytes) -> NDArray[np.uint8]:
    """The pixels, uint8 [height, width, 3], of a PPM of the decoder."""
    _, size, _, pixels = data.split(b"\n", 3)
    width, height = map(int, size.split())
    return np.frombuffer(pixels, np.uint8).reshape(height, width, 3)


def masked_copy(pixels: NDArray[np.uint8], number: int) -> tuple[NDArray[np.uint8], Mask]:
    """Masked copy `number` of an image (0 is the image itself), and how visible each cell of the heat map is in it.

    Hidden pixels have the mean colour of the image. The cells are fp32 [MAP_SIDE, MAP_SIDE], from 0 to 1.
    """
    if number == 0:
        return pixels, np.ones((MAP_SIDE, MAP_SIDE), np.float32)
    mask, visible = _random(number - 1, *pixels.shape[:2])
    mean = np.array(cv2.mean(pixels)[:3], np.float32)
    copy = mean + (pixels - mean) * mask[:, :, np.newaxis]
    return np.rint(copy).astype(np.uint8), visible


def _random(number: int, height: int, width: int) -> tuple[Mask, Mask]:
    """A mask of RISE (Petsiuk et al. 2018), and how visible each cell of the heat map is.

    Half of its GRID × GRID cells are visible, at random; they are enlarged bilinearly and shifted by up to one cell.
    """
    generator = np.random.default_rng((SEED, number))
    cell_height, cell_width = -(-height // GRID), -(-width // GRID)
    cells = (generator.random((GRID, GRID)) < 0.5).astype(np.float32)
    size = (GRID + 1) * cell_width, (GRID + 1) * cell_height
    large = cv2.resize(cells, size, interpolation=cv2.INTER_LINEAR)
    top, left = generator.integers(0, cell_height), generator.integers(0, cell_width)
    mask = np.ascontiguousarray(large[top : top + height, left : left + width], np.float32)
    return mask, np.asarray(cv2.resize(mask, (MAP_SIDE, MAP_SIDE), interpolation=cv2.INTER_AREA), np.float32)


def overlay_of(values: NDArray[np.float32], height: int, width: int) -> bytes:
    """A heat map, fp32 [rows, columns], as a PNG to lay over an image of `height` × `width` pixels.

    It is the more opaque the more a part raises the score, and transparent where a part lowers it. The largest value,
    or _FULL if that is larger, has full strength.
    """
    scale = OVERLAY_SIDE / max(height, width)
    size = max(round(width * scale), 1), max(round(height * scale), 1)
    heat = np.maximum(values, 0) / max(float(values.max()), _FULL)
    heat = np.clip(cv2.resize(heat, size, interpolation=cv2.INTER_CUBIC), 0, 1)
    colours = cv2.applyColorMap(np.rint(heat * 255).astype(np.uint8), cv2.COLORMAP_INFERNO)
    opacity = np.rint(heat * (255 * _MOST_OPAQUE)).astype(np.uint8)
    written, png = cv2.imencode(".png", np.dstack((colours, opacity)))
    assert written
    return png.tobytes()
