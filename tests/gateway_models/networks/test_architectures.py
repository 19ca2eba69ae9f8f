"""Weights of another architecture are refused with the one that they fit."""

import pytest
import torch
from torchvision import models

from gateway_models.networks import architectures
from gateway_models.networks.architectures import Fit, fitting, shapes_of
from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.originals import original_module
from gateway_models.repository.spec import ModelSpec
from tests.gateway_models.networks.builders import Head


@pytest.mark.parametrize(
    ("architecture", "asked"),
    [("resnet34", "torchvision:resnet50"), ("regnet_y_400mf", "torchvision:regnet_x_400mf")],
)
def test_architecture_of_torchvision_is_found(architecture, asked):
    """RegNet computes its widths by torch, so it cannot be built without memory by the device alone."""
    state = models.get_model(architecture, num_classes=5).state_dict()
    assert fitting(shapes_of(state), asked, print) == Fit(f"torchvision:{architecture}", 5)


def test_architecture_of_timm_is_found():
    timm = pytest.importorskip("timm")
    state = timm.create_model("vit_tiny_patch16_224", num_classes=4).state_dict()
    assert fitting(shapes_of(state), "timm:vit_small_patch16_224", print) == Fit("timm:vit_tiny_patch16_224", 4)


@pytest.mark.parametrize(
    ("asked", "classes", "advice"),
    [
        ("resnet34", 5, r"layer1\.2\.conv1\.weight is missing, .* and \d+ more\. They fit torchvision:resnet18 with 5"),
        ("resnet18", 7, r"They fit it with 5 classes: use --labels FILE with 5 labels"),
    ],
)
def test_refusal_names_three_weights_and_the_fitting_architecture(tmp_path, asked, classes, advice):
    torch.save(models.resnet18(num_classes=5).state_dict(), tmp_path / "weights.pth")
    spec = ModelSpec(f"torchvision:{asked}", "model", weights=str(tmp_path / "weights.pth"))
    with pytest.raises(ModelFileError, match=advice) as refused:
        original_module(spec, classes)
    assert len(str(refused.value)) < 500


@pytest.mark.long
def test_weights_of_no_architecture_are_refused_with_another_way(tmp_path):
    torch.save(Head().state_dict(), tmp_path / "weights.pth")
    spec = ModelSpec("torchvision:resnet18", "model", weights=str(tmp_path / "weights.pth"))
    with pytest.raises(ModelFileError, match=r"No architecture of torchvision or timm was found .*torch\.export\.save"):
        original_module(spec, 5)


def test_long_search_reports_its_progress(monkeypatch):
    monkeypatch.setattr(architectures, "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(architectures, "SEARCH_SECONDS", 0.5)
    lines = []
    assert fitting({"nowhere": (1,)}, "torchvision:resnet18", lines.append) is None
    assert lines[0].startswith("1 architectures tried in ")
    assert lines[0].endswith("the last torchvision:resnet18")
