"""`gateway model explain`: maps by the gradients of the network."""

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

from gateway_models.networks.originals import NoGradients
from gateway_models.networks.torchscript import without_deprecations
from gateway_models.proof.explain import grad_cam, integrated_gradients, spread
from gateway_models.repository.preprocessing import Preprocessing
from tests.commands import gateway, refusal
from tests.gateway_models.networks.special_networks import Corners

SIDE = 32


def bright_corner() -> torch.Tensor:
    image = torch.full((1, 3, SIDE, SIDE), 0.1)
    image[:, :, : SIDE // 2, : SIDE // 2] = 1
    return image


def test_grad_cam_is_hot_where_the_last_convolution_answers():
    values = grad_cam(Corners().eval(), bright_corner(), 0)
    assert values.shape == (SIDE, SIDE)
    assert values[: SIDE // 2, : SIDE // 2].min() > 5 * values[SIDE // 2 :, SIDE // 2 :].max()


def test_integrated_gradients_add_up_to_the_score():
    """Completeness: the parts of all pixels are the score less that of the baseline, which is 0 here."""
    network, image = Corners().eval(), bright_corner()
    for class_id in (0, 1):
        values = integrated_gradients(network, image, class_id)
        with torch.no_grad():
            assert values.sum() == pytest.approx(float(network(image)[0, class_id]), rel=1e-3)
    assert np.abs(values[SIDE // 2 :]).max() == 0


def test_grad_cam_needs_modules_that_can_be_seen():
    with without_deprecations():
        scripted = torch.jit.trace(Corners().eval(), bright_corner())
    with pytest.raises(NoGradients, match="use --method integrated-gradients"):
        grad_cam(scripted, bright_corner(), 0)
    assert integrated_gradients(scripted, bright_corner(), 0).sum() > 0


@pytest.mark.parametrize("method", [grad_cam, integrated_gradients])
def test_network_without_gradients_says_so(method):
    class Whole(Corners):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                return super().forward(images)

    with pytest.raises(NoGradients, match="use POST /explain"):
        method(Whole().eval(), bright_corner(), 0)


@pytest.mark.parametrize(
    ("resize", "seen"),
    [((40,), (slice(45, 179), slice(157, 291))), ((40, 40), (slice(22, 202), slice(45, 403)))],
    ids=str,
)
def test_map_lies_where_the_network_saw_the_image(resize, seen):
    """The map of an image of 80 × 40 covers the centre of 24 or 32 pixels, in an overlay of 448 × 224."""
    crop = 24 if len(resize) == 1 else 32
    preprocessing = Preprocessing(resize, crop, "bilinear", (0.5,) * 3, (0.5,) * 3)
    whole = spread(np.ones((7, 7), np.float32), (80, 40), preprocessing)
    assert whole.shape == (224, 448)
    rows, columns = np.nonzero(whole)
    found = (slice(rows.min(), rows.max() + 1), slice(columns.min(), columns.max() + 1))
    for one, other in zip(found, seen, strict=True):
        assert (one.start, one.stop) == pytest.approx((other.start, other.stop), abs=1)


def test_command_prints_the_map_as_json_or_writes_the_image_with_it(added_head, photos, tmp_path, monkeypatch):
    """Into the current folder: the image's own may be a data set."""
    monkeypatch.chdir(tmp_path)
    command = ("model", "explain", photos / "cat.jpg", "--model", "head", "--model-repository", added_head[0])
    document = json.loads(gateway(*command, "--label", "1", "--json").stdout.splitlines()[-1])
    assert list(tmp_path.iterdir()) == []
    assert document["class_id"] == 1
    assert np.array(document["values"]).shape == (28, 28)
    assert re.search(r"\(class \d\): [01]\.\d{4}, head version 1", gateway(*command).output)
    with Image.open(photos / "cat.jpg") as original, Image.open(tmp_path / "cat-explained.png") as written:
        assert written.size == original.size
    error = refusal(*command, "--label", "no such")
    assert "the model has no class 'no such'; it has" in error
