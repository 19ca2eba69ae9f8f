"""The preprocessor resizes to torchvision's pixels of a PIL image, with the kernel and without."""

import importlib.util
import sys
from types import ModuleType

import numpy as np
import PIL
import pytest
from PIL import Image

from gateway_models.repository.preprocessing import Preprocessing, reference_transforms
from gateway_models.repository.writing import PREPROCESSOR_CODE
from tests.native.pictures import noise

SHAPES = [(400, 600), (600, 400), (97, 150), (224, 224), (300, 224), (5, 3), (224, 800), (900, 256)]
SIZES = {"both sides": [224, 224], "the shorter side": [256], "its odd crop": [231]}


@pytest.fixture(params=["the kernel", "Pillow"])
def model(request, monkeypatch) -> ModuleType:
    """The preprocessor's resizing.py, as a machine with the kernel has it, and as one without."""
    if request.param == "the kernel":
        pytest.importorskip("exact_resize", reason="the resize kernel is not built: pip install ./native")
    else:
        monkeypatch.setitem(sys.modules, "exact_resize", None)
    spec = importlib.util.spec_from_file_location("preprocessor_resizing", PREPROCESSOR_CODE / "resizing.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (module.exact_resize is not None) == (request.param == "the kernel")
    return module


def wanted(pixels, size, interpolation, crop=(224, 224)):
    # Imported here, since it takes seconds, also while tests are collected.
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional

    image = functional.resize(Image.fromarray(pixels), size, InterpolationMode(interpolation), antialias=True)
    return np.asarray(functional.center_crop(image, list(crop)))


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos", "box"])
def test_pixels_equal_torchvisions(model, size, interpolation):
    resize = model.PillowResize(size, [224, 224], model.InterpolationMode(interpolation))
    for shape in SHAPES:
        pixels = noise(*shape)
        assert np.array_equal(resize(pixels), wanted(pixels, size, interpolation)), shape


@pytest.mark.parametrize("size", [(64,), (64, 72)])
def test_parity_reference_has_the_same_order(model, size):
    resize = model.PillowResize(list(size), [64, 64], model.InterpolationMode.BICUBIC)
    preprocessing = Preprocessing(size, 64, "bicubic", (0.0,) * 3, (1.0,) * 3)
    for shape in [(700, 300), (300, 700), (909, 9), (50, 40), (64, 200)]:
        pixels = noise(*shape)
        expected = reference_transforms(preprocessing)(Image.fromarray(pixels))
        assert np.array_equal(resize(pixels), (expected * 255).round().numpy().transpose(1, 2, 0)), shape


def test_log_names_the_resize_library_and_the_reason(model):
    of_kernel = model.exact_resize is not None
    said = model.PillowResize([224, 224], [224, 224], model.InterpolationMode.BICUBIC).described()
    assert said.endswith(
        "does" if of_kernel else "is not installed; the pixels are the same, the time is six times its"
    )
    assert f"Pillow {PIL.__version__}" in said
    nearest = model.PillowResize([224, 224], [224, 224], model.InterpolationMode.NEAREST).described()
    assert nearest.endswith("exact_resize has no nearest")


def test_kernel_with_different_pixels_is_not_used(model, monkeypatch):
    if model.exact_resize is None:
        pytest.skip("there is none")
    monkeypatch.setattr(model.exact_resize, "resize", lambda source, target, *_, **__: target.fill(1))
    resize = model.PillowResize([224, 224], [224, 224], model.InterpolationMode.BICUBIC)
    pixels = noise(300, 300)
    assert "makes other pixels of 300 by 400 on this machine" in resize.described()
    assert np.array_equal(resize(pixels), wanted(pixels, [224, 224], "bicubic"))
