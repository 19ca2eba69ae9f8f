"""Masked copies of an image, and its heat map, made in a decoder's process."""

import numpy as np
import pytest

from gateway.errors import TruncatedImage, UndecodableImage
from gateway.ingest.decoders.pool import Decoders
from gateway.ingest.inspection import inspect
from gateway_plugins.media import open_files
from gateway_plugins.media.masking import Masking, Method
from gateway_plugins.media.open_files import MaskedImage, masked
from tests.asking import encode
from tests.gateway.ingest.reading import LIMITS

HEIGHT, WIDTH = 40, 80
GRID = 4


def picture() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)


def pixels_of(ppm: bytes) -> np.ndarray:
    header = b"P6\n%d %d\n255\n" % (WIDTH, HEIGHT)
    assert ppm.startswith(header)
    return np.frombuffer(ppm[len(header) :], np.uint8).reshape(HEIGHT, WIDTH, 3)


async def copies(image: MaskedImage) -> list[np.ndarray]:
    """All of them; the image ends after its heat map, so the number is asked for."""
    return [pixels_of((await image.next()).pixels) for _ in range(image.masking.images)]


def opened(pool: Decoders, masking: Masking):
    data = encode(picture(), ".png")
    return masked(pool, data, inspect(data, LIMITS), 1_024, pool.account(), masking)


async def test_first_copy_is_the_image_itself(pool):
    async with opened(pool, Masking.of(Method.RISE, GRID, 3)) as image:
        first, *masked = await copies(image)
        await image.draw(np.zeros(4, np.float32))
    assert np.array_equal(first, picture())
    assert len(masked) == 3
    assert all((each != first).any() for each in masked)


async def test_windows_hide_each_cell_four_times(pool):
    masking = Masking.of(Method.OCCLUSION, GRID, 0)
    async with opened(pool, masking) as image:
        first, *masked = await copies(image)
        await image.draw(np.zeros(masking.images, np.float32))
    mean = np.rint(first.mean(axis=(0, 1)))
    hidden = np.stack([(each == mean).all(axis=2) for each in masked])
    assert len(masked) == (GRID + 1) ** 2
    assert (hidden.sum(axis=0) >= 4).all()
    assert np.median(hidden.sum(axis=0)) == 4
    top_left = hidden[0]
    assert top_left[: HEIGHT // GRID, : WIDTH // GRID].all()
    assert top_left.mean() == pytest.approx(1 / GRID**2, abs=0.01)


async def test_map_is_the_difference_of_mean_scores(pool):
    """The score falls by 1 if the first window, which is the cell at the top left, is hidden, and by no other."""
    masking = Masking.of(Method.OCCLUSION, GRID, 0)
    scores = np.ones(masking.images, np.float32)
    scores[1] = 0
    async with opened(pool, masking) as image:
        await copies(image)
        heat = await image.draw(scores)
    expected = np.full((GRID, GRID), 20 / 21 - 1)
    expected[0, 0] = 1 - 3 / 4
    assert heat.values == pytest.approx(expected, abs=1e-6)
    assert heat.overlay.startswith(b"\x89PNG")


@pytest.mark.parametrize("method", Method)
async def test_image_that_made_room_has_the_same_copies_and_map(pool, monkeypatch, method):
    masking = Masking.of(method, GRID, 20)
    scores = np.random.default_rng(5).random(masking.images, np.float32)
    async with opened(pool, masking) as image:
        expected = await copies(image)
        heat = await image.draw(scores)
    monkeypatch.setattr(open_files, "KEEP_MASKED_SECONDS", 0.0)
    async with opened(pool, masking) as image:
        seen = [pixels_of((await image.next()).pixels) for _ in range(masking.images // 2)]
        async with opened(pool, masking):
            assert not image.is_open
        seen += [pixels_of((await image.next()).pixels) for _ in range(masking.images - len(seen))]
        async with opened(pool, masking):
            assert not image.is_open
        again = await image.draw(scores)
    assert np.array_equal(np.stack(seen), np.stack(expected))
    assert np.array_equal(again.values, heat.values)
    assert again.overlay == heat.overlay


async def test_image_that_cannot_be_decoded_is_not_opened(pool):
    data = bytearray(encode(picture(), ".png"))
    info = inspect(bytes(data), LIMITS)
    data[60:200] = bytes(140)
    with pytest.raises((UndecodableImage, TruncatedImage)):
        async with masked(pool, bytes(data), info, 1_024, pool.account(), Masking.of(Method.RISE, GRID, 5)):
            raise AssertionError("it was opened")
