"""Parity and proofs: what they compare and measure, and what they say."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gateway_models.proof.parity import Comparison, Parity
from gateway_models.proof.reference import shown
from gateway_models.proof.report import parity_report

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


@pytest.mark.parametrize("on_gpu", [True, False])
def test_differences_on_a_gpu_come_with_tf32_and_its_switch(capsys, on_gpu):
    served, expected = np.float32([0.6, 0.4]), np.float32([0.606, 0.394])
    stages = {"decode": served * 0, "resize": served * 0, "model": served - expected}
    parity = Parity([Comparison(Path("cat.jpg"), served, expected, stages)], [], on_gpu)
    parity_report(parity, ["cat", "dog"], 1e-3).print()
    output = capsys.readouterr().out
    assert ["TF32" in output, "NVIDIA_TF32_OVERRIDE=0" in output] == [on_gpu] * 2
