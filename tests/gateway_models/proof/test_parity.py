"""Parity and proofs: comparisons, measurements and messages."""

import numpy as np
import pytest
from PIL import Image

from gateway_models.proof.parity import shown

CLEAR = Image.new("RGBA", (2, 2), (255, 0, 0, 0))


@pytest.mark.parametrize(
    ("image", "pixel"),
    [
        (CLEAR, (255, 255, 255)),
        (CLEAR.convert("RGB"), (255, 0, 0)),
        (Image.fromarray(np.full((2, 2), 0x8080, np.uint16)), (0x80, 0x80, 0x80)),
    ],
    ids=["transparent, on white", "RGB", "gray of 16 bits"],
)
def test_reference_shows_an_image(image, pixel):
    assert shown(image).getpixel((0, 0)) == pixel
