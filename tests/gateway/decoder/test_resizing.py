"""Large images are resized where they are decoded, to exactly the pixels and tensors of the preprocessor in Triton."""

import importlib.util
import io
from dataclasses import replace
from types import ModuleType

import cv2
import numpy as np
import pytest
from PIL import Image

from gateway.decoder import resampling
from gateway.decoder.decoding import decode
from gateway.decoder.in_process import prepare, whole_header
from gateway.decoder.tensors import to_tensor
from gateway.ingest.image_formats import peak_bytes, reduction, shrunk_bytes
from gateway.ingest.resizing import Resize, TensorInput, resize_of
from gateway_models.repository.writing import PREPROCESSOR_CODE
from tests.asking import encode
from tests.gateway.ingest.reading import LIMITS
from tests.native.pictures import noise
from tests.photos import PHOTOS, photo
from tests.samples import samples


def photograph(height: int = 1_200, width: int = 1_600) -> bytes:
    smooth = cv2.resize(noise(height // 50, width // 50), (width, height), interpolation=cv2.INTER_CUBIC)
    return encode(smooth, ".jpg")


def pixels_of(image: bytes) -> np.ndarray:
    return cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR_RGB)


def test_large_image_is_decoded_in_full_and_resized_like_pillow():
    data = photograph()
    info, resize = whole_header(data, LIMITS), Resize((64, 64), "bicubic")
    expected = Image.fromarray(pixels_of(data)).resize((64, 64), Image.Resampling.BICUBIC)
    assert np.array_equal(decode(data, info, resize), np.asarray(expected))
    assert shrunk_bytes(info, resize) == 64 * 64 * 3
    assert peak_bytes(info, resize) >= 2 * 3 * info.width * info.height


def test_fast_decoding_keeps_four_times_the_target_size():
    data = photograph()
    info = whole_header(data, LIMITS)
    exact, fast = (Resize((64, 48), "bicubic", fast=fast) for fast in (False, True))
    assert [reduction(info, size) for size in (exact, fast, 300)] == [1, 4, 4]
    assert reduction(info, Resize((301,), "bicubic", fast=True)) == 1

    slow, quick = (decode(data, info, size).astype(int) for size in (exact, fast))
    assert slow.shape == quick.shape == (64, 48, 3)
    assert 0 < np.abs(slow - quick).mean() < 3


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_reduced_scale_has_the_colours_of_the_full_one(mode):
    with io.BytesIO() as file:
        Image.open(io.BytesIO(photograph())).convert(mode).save(file, "JPEG", quality=95)
        data = file.getvalue()
    info = whole_header(data, LIMITS)
    full, reduced = (decode(data, info, Resize((64, 48), "bicubic", fast=fast)) for fast in (False, True))
    assert np.abs(full.astype(int) - reduced).mean() < 3


@pytest.mark.parametrize(
    "changed",
    [
        {"resize_library": "torch"},
        {"resize_library": ""},
        {"interpolation": "area"},
        {"resize_size": "64,x"},
        {"resize_size": "0"},
    ],
)
def test_unsupported_resize_is_left_to_the_preprocessor(changed):
    parameters = {"resize_size": "64", "interpolation": "bilinear", "resize_library": "pillow"}
    assert resize_of(parameters, fast=True) == Resize((64,), "bilinear", fast=True)
    assert resize_of({**parameters, **changed}, fast=False) is None
    assert resize_of({}, fast=False) is None


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BOTH_SIDES = TensorInput(Resize((224, 224), "bicubic"), (224, 224), (0.5,) * 3, (0.5,) * 3)
WAYS = {
    "both sides": BOTH_SIDES,
    "shorter side": TensorInput(Resize((256,), "bilinear"), (224, 224), MEAN, STD),
    "odd crop": TensorInput(Resize((97,), "lanczos"), (64, 64), MEAN, STD),
    "floored crop": TensorInput(Resize((99,), "lanczos"), (64, 64), MEAN, STD, crop_rounding="floor"),
    "another shape": TensorInput(Resize((60, 90), "box"), (50, 75), MEAN, STD),
    "nearest": TensorInput(Resize((48, 48), "nearest"), (48, 48), MEAN, STD),
    "pixels": replace(BOTH_SIDES, datatype="uint8"),
}


def module(name: str) -> ModuleType:
    """A module of the preprocessor that imports no other one of it."""
    spec = importlib.util.spec_from_file_location(f"preprocessor_{name}", PREPROCESSOR_CODE / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(params=["the kernel", "Pillow"])
def resizing(request, monkeypatch) -> ModuleType:
    """The preprocessor's resizing.py; both sides have the kernel, or neither has."""
    loaded = module("resizing")
    resampling._kernel_is_exact.cache_clear()
    if request.param == "the kernel":
        pytest.importorskip("exact_resize", reason="the resize kernel is not built: pip install ./native")
    else:
        monkeypatch.setattr(loaded, "exact_resize", None)
        monkeypatch.setattr(resampling, "exact_resize", None)
    yield loaded
    resampling._kernel_is_exact.cache_clear()


def by_the_ensemble(data: bytes, tensor: TensorInput, resizing: ModuleType) -> bytes:
    """The gateway passes the file on or decodes it, and the preprocessor makes the tensor."""
    pixels = pixels_of(prepare(data, LIMITS, tensor.resize).payload)
    if len(tensor.resize.size) == 1:
        pixels = resizing.without_ends(pixels)
    mode = resizing.InterpolationMode(tensor.resize.interpolation)
    crop = resizing.CentreCrop(list(tensor.crop), tensor.crop_rounding)
    resize = resizing.PillowResize(list(tensor.resize.size), crop, mode)
    batches = module("batches")
    dtype = np.uint8 if tensor.datatype == "uint8" else np.float32
    mean, std = (np.array(each, np.float32).reshape(3, 1, 1) for each in (tensor.mean, tensor.std))
    batch = batches.NumpyBatch(batches.TensorFormat(list(tensor.crop), dtype, mean, std))
    return batch([resize(pixels)]).tobytes()


def by_a_decoder(data: bytes, tensor: TensorInput) -> bytes:
    info = whole_header(data, LIMITS)
    values = to_tensor(decode(data, info, tensor), tensor)
    assert values.shape == tensor.shape
    assert values.nbytes == tensor.nbytes
    return values.tobytes()


@pytest.mark.parametrize("tensor", WAYS.values(), ids=WAYS)
def test_photographs_have_the_bytes_of_the_ensemble(resizing, tensor):
    for name in PHOTOS:
        data = photo(name)
        assert by_a_decoder(data, tensor) == by_the_ensemble(data, tensor, resizing), name


@pytest.mark.slow
@pytest.mark.parametrize("way", ["both sides", pytest.param("shorter side", marks=pytest.mark.long)])
def test_every_form_has_the_bytes_of_the_ensemble(resizing, way):
    """Orientations, transparency, 16 bits, palettes, and formats that the gateway decodes for both."""
    for form in samples(151, 100):
        assert by_a_decoder(form.data, WAYS[way]) == by_the_ensemble(form.data, WAYS[way], resizing), form.name


@pytest.mark.parametrize("shape", [(1, 1), (3, 1_000), (1_000, 3), (40, 40), (225, 224), (2_000, 1_500)])
def test_odd_sizes_have_the_bytes_of_the_ensemble(resizing, shape):
    data = encode(noise(*shape), ".png")
    for tensor in WAYS.values():
        assert by_a_decoder(data, tensor) == by_the_ensemble(data, tensor, resizing), tensor


def test_other_layouts_have_the_same_values():
    data = photo("cat")
    values = np.frombuffer(by_a_decoder(data, BOTH_SIDES), np.float32).reshape(BOTH_SIDES.shape)
    nhwc = replace(BOTH_SIDES, layout="nhwc")
    assert nhwc.shape == (224, 224, 3)
    rows = np.frombuffer(by_a_decoder(data, nhwc), np.float32).reshape(nhwc.shape)
    assert np.array_equal(rows, values.transpose(1, 2, 0))
    bgr = np.frombuffer(by_a_decoder(data, replace(BOTH_SIDES, channels="bgr")), np.float32)
    assert np.array_equal(bgr.reshape(values.shape), values[::-1])
    half = np.frombuffer(by_a_decoder(data, replace(BOTH_SIDES, datatype="fp16")), np.float16)
    assert np.array_equal(half.reshape(values.shape), values.astype(np.float16))
