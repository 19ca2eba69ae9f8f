"""How a model wants its images: from torchvision's names, from files, and refused where it cannot be."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from PIL import Image

from gateway_models.repository.preprocessing import Preprocessing, PreprocessingError, numbers, reference_transforms
from gateway_models.repository.preprocessing_sources import from_file, from_mapping, from_weights
from tests.gateway_models.repository.entries import SMALL

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


@pytest.mark.parametrize(("weights", "resize"), [("IMAGENET1K_V1", 256), ("IMAGENET1K_V2", 232)])
def test_torchvision_weights_have_their_preprocessing(weights, resize):
    found = from_weights(f"ResNet50_Weights.{weights}")
    assert found == Preprocessing((resize,), 224, "bilinear", **IMAGENET)


def test_reference_transforms_are_those_of_the_weights():
    from torchvision.models import ResNet50_Weights  # imported here, since it takes seconds wait for

    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)
    image = Image.fromarray(pixels)
    ours = reference_transforms(from_weights("ResNet50_Weights.IMAGENET1K_V2"))(image)
    assert torch.allclose(ours, ResNet50_Weights.IMAGENET1K_V2.transforms()(image), atol=1e-6)


@pytest.mark.parametrize("name", ["ResNet18", "resnet18", "efficientnet_b0", "Resnet50_Weights.IMAGENET1K_V2"])
def test_architecture_name_suggests_its_weights(name):
    with pytest.raises(PreprocessingError) as refused:
        from_weights(name)
    advised = str(refused.value).partition("did you mean ")[2].removesuffix("?").split(" or ")[0]
    assert advised.lower().startswith(name.lower())
    assert from_weights(advised).crop_size


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
OWN = {
    "resize_size": [256, 256],
    "crop_size": 224,
    "interpolation": "bilinear",
    "mean": [0.1, 0.2, 0.3],
    "std": [1, 1, 1],
}


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (HUGGING_FACES, AS_TRANSFORMERS),
        ({"image_processor": HUGGING_FACES}, AS_TRANSFORMERS),
        (OWN, Preprocessing((256, 256), 224, "bilinear", (0.1, 0.2, 0.3), (1.0, 1.0, 1.0))),
    ],
    ids=["Hugging Face's", "of transformers 5", "the project's own"],
)
def test_file_is_read(tmp_path, values, wanted):
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(values))
    assert from_file(path) == wanted


def test_resize_library_may_be_left_out_or_differ():
    assert SMALL.differences({**SMALL.parameters(), "resize_library": "torch"}) == []
    mapping = {**asdict(SMALL), "resize_library": "torch"}
    assert from_mapping(mapping).parameters()["resize_library"] == "torch"
    assert from_mapping(mapping).described().endswith("resized by torch")
    del mapping["resize_library"]
    assert from_mapping(mapping) == SMALL


STATISTICS = {"do_normalize": True, "resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
"""What every file of Hugging Face has here."""


@pytest.mark.parametrize(
    ("usual", "change", "reason"),
    [
        (OWN, {"crop_size": 300}, "would have black borders"),
        (OWN, {"std": [0.2, 0.2, 0.0]}, "none may be 0"),
        (OWN, {"std": [0.2, 0.2]}, "std has 2 numbers but needs three"),
        (OWN, {"crop_rounding": "up"}, "'up' is not a crop_rounding; use even or floor"),
        (OWN, {"interpolation": "cubic"}, "use one of nearest, .*bicubic"),
        (OWN, {"crop_size": [224, 192]}, "only squares"),
        (OWN, {"resise_size": 256}, "resise_size is not known"),
        (OWN, {"mean": "red"}, "could not convert"),
        (STATISTICS, {"size": {"shortest_edge": 256}}, "gives images of different sizes"),
        (STATISTICS, {"size": {"longest_edge": 256}}, "neither shortest_edge nor height"),
        (STATISTICS, {"size": 224, "do_center_crop": True, "rescale_factor": 0.0078}, "must be 1/255"),
        (
            STATISTICS,
            {"size": 32, "image_processor_type": "LevitImageProcessor"},
            "LevitImageProcessor is not supported",
        ),
        (STATISTICS, {"size": 32, "do_flip_channel_order": True}, "do_flip_channel_order of the processor is not"),
        (STATISTICS, {"size": 32, "crop_pct": 0.9}, "crop_pct of the processor is not supported"),
        (STATISTICS, {"size": 32, "do_normalize": None}, "do_resize and do_normalize must be true"),
        (STATISTICS, {"size": 32, "resample": None}, "resample is missing, whose default differs"),
        (STATISTICS, {"size": 32, "do_resize": False}, "do_resize and do_normalize must be true"),
    ],
)
def test_file_that_cannot_be_served_is_refused(tmp_path, usual, change, reason):
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps({**usual, **change}))
    with pytest.raises(PreprocessingError, match=reason):
        from_file(path)


def test_numbers_in_an_option_are_separated_by_commas():
    assert numbers("0.485,0.456,0.406") == IMAGENET["mean"]
    with pytest.raises(PreprocessingError, match="'a,b' must be numbers"):
        numbers("a,b")
