"""Parity and proofs: what they compare and measure, and what they say."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gateway_models.proof.dataset import Sample
from gateway_models.proof.over_http import GatewayRefused, predict_over_http
from gateway_models.proof.parity import Comparison, Parity
from gateway_models.proof.reference import shown
from gateway_models.proof.report import parity_report
from tests.doubles.backend import PNG, StubBackend, scored
from tests.processes import free_port
from tests.services import stub_service

SCORES = np.array([0.1, 0.7, 0.2], np.float32)


def samples(folder: Path, *images: bytes) -> list[Sample]:
    paths = [folder / f"{number}.png" for number in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        path.write_bytes(image)
    return [Sample(path, frozenset()) for path in paths]


def test_every_class_has_the_score_that_clients_get(tmp_path):
    backend = StubBackend(scored(*SCORES))
    with stub_service(backend) as url:
        given = samples(tmp_path, PNG, b"no picture")
        (served,), (refused,) = predict_over_http(f"{url}/", "flowers", (2,), given)
    assert np.array_equal(served.probabilities, SCORES)
    assert served.embedding is None
    assert refused.probabilities is None
    assert "not a JPEG, PNG" in refused.reason
    (call,) = backend.calls
    assert (call.model_name, call.model_version, call.selection) == ("flowers", "2", None)


def test_unreachable_gateway_ends_the_comparison(tmp_path):
    away = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(GatewayRefused, match="/v2/models/flowers/versions/1/infer does not answer"):
        list(predict_over_http(away, "flowers", (1,), samples(tmp_path, PNG)))


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
