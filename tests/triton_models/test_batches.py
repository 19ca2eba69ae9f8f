"""A batch has the same bits on a GPU as on a CPU; torch's CPU device stands in for the GPU."""

from types import ModuleType

import numpy as np
import pytest
import torch

from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from tests.native.pictures import noise

HEIGHT, WIDTH = 24, 32
MEAN, STD = (np.array(each, np.float32).reshape(3, 1, 1) for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
IMAGES = [noise(HEIGHT, WIDTH), None, np.full((HEIGHT, WIDTH, 3), 255, np.uint8)]


def module(name: str) -> ModuleType:
    from bench.limit import preprocessor  # with torchvision, which takes seconds to import

    return preprocessor(DEFAULT_MODEL_REPOSITORY, name)


@pytest.fixture
def batches():
    return module("batches")


@pytest.fixture
def on_torch():
    return module("on_torch")


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_numpy_and_torch_batches_are_equal(batches, on_torch, dtype):
    form = batches.TensorFormat([HEIGHT, WIDTH], dtype, MEAN, STD)
    by_numpy = batches.NumpyBatch(form)(IMAGES)
    by_torch = on_torch.TorchBatch(form, torch.device("cpu"))(IMAGES)
    assert by_numpy.dtype == dtype
    assert by_numpy.shape == (len(IMAGES), 3, HEIGHT, WIDTH)
    assert np.array_equal(by_numpy, by_torch.numpy())
    assert not by_numpy[1].any()


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_image_is_normalised_like_torchvision(batches, dtype):
    (made,) = batches.NumpyBatch(batches.TensorFormat([HEIGHT, WIDTH], dtype, MEAN, STD))(IMAGES[:1])
    pixels = IMAGES[0].transpose(2, 0, 1)
    expected = (pixels / 255 - MEAN) / STD if dtype is np.float32 else pixels
    assert np.allclose(made, expected, atol=1e-6)


def test_torch_resized_image_fits_a_cpu_batch(batches, on_torch):
    resizing = module("resizing")
    resize = on_torch.TorchResize([HEIGHT, WIDTH], [HEIGHT, WIDTH], resizing.InterpolationMode.BILINEAR)
    image = resize(noise(HEIGHT, WIDTH))
    (made,) = batches.NumpyBatch(batches.TensorFormat([HEIGHT, WIDTH], np.uint8, MEAN, STD))([image])
    assert np.array_equal(made, noise(HEIGHT, WIDTH).transpose(2, 0, 1))
