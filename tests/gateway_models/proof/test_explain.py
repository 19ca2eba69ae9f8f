"""`gateway model explain`: maps by gradients in this process, and by masked copies through a service."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gateway_models.networks.originals import NoGradients
from gateway_models.networks.torchscript import without_deprecations
from gateway_models.proof.attributions import grad_cam, integrated_gradients
from gateway_models.proof.explain import explain_by_masks, spread
from gateway_models.proof.over_http import GatewayRefused
from gateway_models.repository.preprocessing import Preprocessing
from tests.commands import gateway, usage_error
from tests.doubles.backend import picture, quarters_backend
from tests.gateway_models.networks.special_networks import Corners
from tests.services import stub_service

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

    with pytest.raises(NoGradients, match="use --method rise or occlusion"):
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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "corner.png"
    path.write_bytes(picture())
    return path


def test_service_explains_with_progress(file):
    advances: list[tuple[int, int]] = []
    with stub_service(quarters_backend()) as url:
        found = explain_by_masks(url, file, {"masks": 300}, None, lambda *so_far: advances.append(so_far))
        with pytest.raises(GatewayRefused, match="at most 2,000 masks"):
            explain_by_masks(url, file, {"masks": 2001}, None, lambda *_: None)
    assert (found.label, found.class_id, found.method) == ("top left", 0, "rise")
    assert found.values.shape == (28, 28)
    assert {total for _, total in advances} <= {301}


def test_command_prints_the_map_as_json_or_writes_the_image_with_it(file, tmp_path_factory, monkeypatch):
    """Into the current folder: the image's own may be a data set."""
    here = tmp_path_factory.mktemp("here")
    monkeypatch.chdir(here)
    with stub_service(quarters_backend()) as url:
        command = ("model", "explain", file, "--gateway", url, "--method", "occlusion", "--grid", 6)
        printed = gateway(*command, "--label", "bottom right", "--json").stdout
        assert list(here.iterdir()) == []
        result = gateway(*command)
    document = json.loads(printed.splitlines()[-1])  # the service of this process logs there, too
    assert (document["label"], np.array(document["values"]).shape) == ("bottom right", (6, 6))
    assert "top left (class 0): 1.0000, ensemble_model version 1" in result.output
    assert not file.with_name("corner-explained.png").exists()
    written = np.asarray(Image.open(here / "corner-explained.png"))
    original = np.asarray(Image.open(io.BytesIO(picture())).convert("RGB"))
    assert written.shape == original.shape
    changed = np.abs(written.astype(int) - original).sum(axis=2)
    assert changed[5:25, 5:55].mean() > 10 * changed[35:, 65:].mean()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--label", "a", "--class-id", "1"], "not by both"),
        (["--masks", "5", "--method", "occlusion"], "--masks is for --method rise"),
        (["--method", "grad-cam", "--gateway", "http://x"], "excludes --gateway"),
    ],
    ids=str,
)
def test_contradictory_options_are_refused(file, arguments, words):
    assert words in usage_error("model", "explain", file, *arguments)
