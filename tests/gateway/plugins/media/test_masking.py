"""Masked copies of an image, and the heat map of their scores."""

import cv2
import numpy as np
import pytest

from gateway.plugins.media.heat_map import MAP_SIDE, heat_values
from gateway.plugins.media.in_decoder.masking import masked_copy, overlay_of

HEIGHT, WIDTH = 40, 80
PIXELS = np.random.default_rng(3).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)


def copies(masks: int) -> tuple[list[np.ndarray], np.ndarray]:
    """The pixels of all images, and how visible each cell is in the masked ones."""
    made = [masked_copy(PIXELS, number) for number in range(masks + 1)]
    return [copy for copy, _ in made], np.stack([visible for _, visible in made[1:]]).astype(np.float64)


def test_first_copy_is_the_image_itself_and_each_number_has_its_mask():
    first, *others = copies(3)[0]
    assert np.array_equal(first, PIXELS)
    assert len(others) == 3
    assert all((each != first).any() for each in others)
    assert np.array_equal(others[2], masked_copy(PIXELS, 3)[0])


def test_map_is_the_difference_of_mean_scores():
    """The score falls by 1 where the centre is hidden."""
    visible = copies(200)[1]
    values = heat_values(visible[:, MAP_SIDE // 2, MAP_SIDE // 2], visible)
    assert values.shape == (MAP_SIDE, MAP_SIDE)
    assert values[MAP_SIDE // 2, MAP_SIDE // 2] > max(0.9 * values.max(), 0.3)
    shown, hidden = visible[:, 0, 0], 1 - visible[:, 0, 0]
    scores = visible[:, MAP_SIDE // 2, MAP_SIDE // 2]
    assert values[0, 0] == pytest.approx(scores @ shown / shown.sum() - scores @ hidden / hidden.sum(), abs=1e-6)
    assert overlay_of(values, HEIGHT, WIDTH).startswith(b"\x89PNG")


@pytest.mark.parametrize(("largest", "opacity"), [(0.5, 191), (0.1, 191), (0.02, 38), (1e-4, 0), (0.0, 0)])
def test_map_whose_parts_do_not_matter_is_pale(largest, opacity):
    png = overlay_of(np.full((MAP_SIDE, MAP_SIDE), largest, np.float32), HEIGHT, WIDTH)
    drawn = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_UNCHANGED)[..., 3]
    assert drawn.max() == pytest.approx(opacity, abs=1)
