"""The preprocessor's pixels are torchvision's of a PIL image: resized with the kernel and without, in batches."""

import importlib.util
import sys
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
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
    resize = model.PillowResize(size, model.CentreCrop([224, 224]), model.InterpolationMode(interpolation))
    for shape in SHAPES:
        pixels = noise(*shape)
        assert np.array_equal(resize(pixels), wanted(pixels, size, interpolation)), shape


@pytest.mark.parametrize("rounding", ["even", "floor"])
@pytest.mark.parametrize("size", [(64,), (64, 72)])
def test_parity_reference_has_the_same_order(model, size, rounding):
    """Also where half of the surplus is rounded: 270 by 257 becomes 67 by 64, and 261 by 257 becomes 65 by 64."""
    resize = model.PillowResize(list(size), model.CentreCrop([64, 64], rounding), model.InterpolationMode.BICUBIC)
    preprocessing = Preprocessing(size, 64, "bicubic", (0.0,) * 3, (1.0,) * 3, crop_rounding=rounding)
    for shape in [(700, 300), (300, 700), (909, 9), (50, 40), (64, 200), (270, 257), (261, 257), (257, 270)]:
        pixels = noise(*shape)
        expected = reference_transforms(preprocessing)(Image.fromarray(pixels))
        assert np.array_equal(resize(pixels), (expected * 255).round().numpy().transpose(1, 2, 0)), shape


@pytest.mark.parametrize("shape", [(2, 8_000), (8_000, 2)])
def test_long_strip_is_cropped_before_the_resize(model, shape):
    strip, middle = np.zeros((*shape, 3), np.uint8), slice(3_900, 4_100)
    strip[(slice(None), middle) if shape[0] == 2 else (middle, slice(None))] = 255
    resize = model.PillowResize([256], model.CentreCrop([224, 224]), model.InterpolationMode.BICUBIC)
    assert (resize(strip) == 255).all()


def test_kernel_with_different_pixels_is_not_used(model, monkeypatch):
    if model.exact_resize is None:
        pytest.skip("there is none")
    monkeypatch.setattr(model.exact_resize, "resize", lambda source, target, *_, **__: target.fill(1))
    resize = model.PillowResize([224, 224], model.CentreCrop([224, 224]), model.InterpolationMode.BICUBIC)
    pixels = noise(300, 300)
    assert "makes other pixels of 300 by 400 on this machine" in resize.described()
    assert np.array_equal(resize(pixels), wanted(pixels, [224, 224], "bicubic"))


HEIGHT, WIDTH = 24, 32
MEAN, STD = (np.array(each, np.float32).reshape(3, 1, 1) for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
IMAGES = [noise(HEIGHT, WIDTH), None, np.full((HEIGHT, WIDTH, 3), 255, np.uint8)]


def module(name: str) -> ModuleType:
    from bench.limit import preprocessor  # with torchvision, which takes seconds to import

    return preprocessor(DEFAULT_MODEL_REPOSITORY, name)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_batches_have_normalised_pixels(dtype):
    """The same bits by numpy and by torch, whose CPU device stands in for a GPU."""
    import torch

    batches, on_torch = module("batches"), module("on_torch")
    form = batches.TensorFormat([HEIGHT, WIDTH], dtype, MEAN, STD)
    by_numpy = batches.NumpyBatch(form)(IMAGES)
    by_torch = on_torch.TorchBatch(form, torch.device("cpu"))(IMAGES)
    assert (by_numpy.dtype, by_numpy.shape) == (dtype, (len(IMAGES), 3, HEIGHT, WIDTH))
    assert np.array_equal(by_numpy, by_torch.numpy())
    pixels = IMAGES[0].transpose(2, 0, 1)
    expected = (pixels / 255 - MEAN) / STD if dtype is np.float32 else pixels
    assert np.allclose(by_numpy[0], expected, atol=1e-6)
    assert not by_numpy[1].any()


def test_torch_resized_image_fits_a_cpu_batch():
    batches, on_torch, resizing = map(module, ("batches", "on_torch", "resizing"))
    crop = resizing.CentreCrop([HEIGHT, WIDTH])
    resize = on_torch.TorchResize([HEIGHT, WIDTH], crop, resizing.InterpolationMode.BILINEAR)
    image = resize(noise(HEIGHT, WIDTH))
    (made,) = batches.NumpyBatch(batches.TensorFormat([HEIGHT, WIDTH], np.uint8, MEAN, STD))([image])
    assert np.array_equal(made, noise(HEIGHT, WIDTH).transpose(2, 0, 1))


def test_torch_resize_differs_by_fewer_than_three_levels():
    on_torch, resizing = map(module, ("on_torch", "resizing"))
    coarse = Image.fromarray(np.random.default_rng(0).integers(0, 256, (12, 16, 3), np.uint8))
    pixels = np.array(coarse.resize((320, 240), Image.Resampling.BICUBIC))
    crop = resizing.CentreCrop([224, 224])
    resized = on_torch.TorchResize([224, 224], crop, resizing.InterpolationMode.BICUBIC)(pixels).numpy()
    difference = np.abs(resized.astype(int) - wanted(pixels, [224, 224], "bicubic"))
    assert difference.max() < 3
    assert (difference > 0).mean() < 0.02
