"""Masked copies of an image, and the heat map of their scores."""

import numpy as np
import pytest

from gateway.ingest.masking import Masking, Method
from gateway_decoder.decoding import Ppm
from gateway_decoder.masking import masked_copy, overlay_of, read_ppm

HEIGHT, WIDTH, GRID = 40, 80, 4
PIXELS = np.random.default_rng(3).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)


def copies(masking: Masking) -> tuple[list[np.ndarray], np.ndarray]:
    """The pixels of all images, and how visible each cell is in the masked ones."""
    made = [masked_copy(PIXELS, masking, number) for number in range(masking.images)]
    return [copy.pixels for copy, _ in made], np.stack([visible for _, visible in made[1:]]).astype(np.float64)


def test_image_is_read_back():
    assert np.array_equal(read_ppm(Ppm(PIXELS).to_bytes()), PIXELS)


def test_first_copy_is_the_image_itself_and_each_number_has_its_mask():
    masking = Masking.of(Method.RISE, GRID, 3)
    first, *others = copies(masking)[0]
    assert np.array_equal(first, PIXELS)
    assert len(others) == 3
    assert all((each != first).any() for each in others)
    assert np.array_equal(others[2], masked_copy(PIXELS, masking, 3)[0].pixels)


def test_windows_hide_each_cell_four_times():
    first, *others = copies(Masking.of(Method.OCCLUSION, GRID, 0))[0]
    mean = np.rint(first.mean(axis=(0, 1)))
    hidden = np.stack([(each == mean).all(axis=2) for each in others])
    assert len(others) == (GRID + 1) ** 2
    assert (hidden.sum(axis=0) >= 4).all()
    assert np.median(hidden.sum(axis=0)) == 4
    top_left = hidden[0]
    assert top_left[: HEIGHT // GRID, : WIDTH // GRID].all()
    assert top_left.mean() == pytest.approx(1 / GRID**2, abs=0.01)


def test_map_is_the_difference_of_mean_scores():
    """The score falls by 1 if the first window, which is the cell at the top left, is hidden, and by no other."""
    masking = Masking.of(Method.OCCLUSION, GRID, 0)
    scores = np.ones(masking.count)
    scores[0] = 0
    values = masking.values(scores, copies(masking)[1])
    expected = np.full((GRID, GRID), 20 / 21 - 1)
    expected[0, 0] = 1 - 3 / 4
    assert values == pytest.approx(expected, abs=1e-6)
    assert overlay_of(values, HEIGHT, WIDTH).startswith(b"\x89PNG")
