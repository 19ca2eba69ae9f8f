"""How a model wants its images: from torchvision's names, from files, and refused where it cannot be."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from gateway_models.repository.preprocessing import Preprocessing, PreprocessingError, reference_transforms
from gateway_models.repository.preprocessing_sources import from_file, from_weights
from tests.gateway_models.repository.entries import SMALL

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def test_reference_transforms_are_those_of_the_weights():
    from torchvision.models import ResNet50_Weights  # imported here, since it takes seconds wait for

    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)
    image = Image.fromarray(pixels)
    ours = reference_transforms(from_weights("ResNet50_Weights.IMAGENET1K_V2"))(image)
    assert torch.allclose(ours, ResNet50_Weights.IMAGENET1K_V2.transforms()(image), atol=1e-6)


@pytest.mark.parametrize("name", ["resnet18", "Resnet50_Weights.IMAGENET1K_V2"])
def test_name_that_is_no_weights_is_refused(name):
    with pytest.raises(PreprocessingError, match="torchvision has no weights"):
        from_weights(name)


HUGGING_FACES = {
    "size": {"shortest_edge": 256},
    "crop_size": {"height": 224, "width": 224},
    "do_center_crop": True,
    "resample": 3,
    "do_normalize": True,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
}
AS_TRANSFORMERS = Preprocessing((256,), 224, "bicubic", (0.5,) * 3, (0.5,) * 3, crop_rounding="floor")


@pytest.mark.parametrize("values", [HUGGING_FACES, {"image_processor": HUGGING_FACES}], ids=["4", "5"])
def test_file_of_transformers_is_read(tmp_path, values):
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(values))
    assert from_file(path) == AS_TRANSFORMERS


def test_resize_library_is_chosen_for_serving():
    assert SMALL.differences({**SMALL.parameters(), "resize_library": "torch"}) == []
    assert replace(SMALL, resize_library="torch").described().endswith("resized by torch")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"crop_size": 300}, "would have black borders"),
        ({"std": (0.2, 0.2, 0.0)}, "none may be 0"),
        ({"std": (0.2, 0.2)}, "std has 2 numbers but needs three"),
        ({"crop_rounding": "up"}, "'up' is not a crop_rounding; use even or floor"),
        ({"interpolation": "cubic"}, "use one of nearest, .*bicubic"),
    ],
)
def test_preprocessing_that_cannot_be_is_refused(change, reason):
    with pytest.raises(PreprocessingError, match=reason):
        replace(SMALL, **change)


STATISTICS = {"do_normalize": True, "resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
"""Common keys of Hugging Face's files here."""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"size": {"shortest_edge": 256}}, "gives images of different sizes"),
        ({"size": {"longest_edge": 256}}, "neither shortest_edge nor height"),
        ({"size": 224, "do_center_crop": True, "rescale_factor": 0.0078}, "must be 1/255"),
        (
            {"size": 32, "image_processor_type": "LevitImageProcessor"},
            "LevitImageProcessor is not supported",
        ),
        ({"size": 32, "do_flip_channel_order": True}, "do_flip_channel_order of the processor is not"),
        ({"size": 32, "crop_pct": 0.9}, "crop_pct of the processor is not supported"),
        ({"size": 32, "do_normalize": None}, "do_resize and do_normalize must be true"),
        ({"size": 32, "resample": None}, "resample is missing, whose default differs"),
        ({"size": 32, "do_resize": False}, "do_resize and do_normalize must be true"),
    ],
)
def test_file_that_cannot_be_served_is_refused(tmp_path, change, reason):
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps({**STATISTICS, **change}))
    with pytest.raises(PreprocessingError, match=reason):
        from_file(path)
