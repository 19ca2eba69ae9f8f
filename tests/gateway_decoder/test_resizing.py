"""Large images are resized where they are decoded, to exactly the pixels of the preprocessor."""

import io

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gateway.ingest.decode_budget import peak_bytes, reduction, shrunk_bytes
from gateway.ingest.resizing import Resize, resize_of
from gateway_decoder.decoding import decode
from gateway_decoder.in_process import inspect_whole
from gateway_decoder.resampling import resample
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from tests.asking import encode
from tests.gateway.ingest.reading import LIMITS

SIDES = st.integers(1, 260)


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height * 1_000 + width).integers(0, 256, (height, width, 3), np.uint8)


def photograph(height: int = 1_200, width: int = 1_600) -> bytes:
    smooth = cv2.resize(noise(height // 50, width // 50), (width, height), interpolation=cv2.INTER_CUBIC)
    return encode(smooth, ".jpg")


def pixels_of(image: bytes) -> np.ndarray:
    return cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR_RGB)


@settings(deadline=None)
@pytest.mark.slow
@given(
    SIDES,
    SIDES,
    st.sampled_from([(48,), (48, 48), (50, 60)]),
    st.sampled_from(["nearest", "bilinear", "bicubic", "lanczos"]),
)
def test_resized_image_gives_the_same_preprocessor_output(height, width, size, interpolation):
    from bench.limit import pillow_resize, preprocessor  # with torch, which is slow to import

    preprocess = pillow_resize(DEFAULT_MODEL_REPOSITORY, list(size), [48, 48], interpolation)
    without_ends = preprocessor(DEFAULT_MODEL_REPOSITORY, "resizing").without_ends
    parameters = {"resize_size": ",".join(map(str, size)), "interpolation": interpolation, "resize_library": "pillow"}
    resize = resize_of(parameters, fast=False)
    picture = noise(height, width)
    before = resample(picture, resize)

    cut = without_ends if len(size) == 1 else np.asarray
    assert np.array_equal(preprocess(cut(before)), preprocess(cut(picture)))
    assert before.shape[:2] == resize.size_of(height, width)
    assert before.size <= picture.size


def test_large_image_is_decoded_in_full_and_resized_like_pillow():
    data = photograph()
    info, resize = inspect_whole(data, LIMITS), Resize((64, 64), "bicubic")
    expected = Image.fromarray(pixels_of(data)).resize((64, 64), Image.Resampling.BICUBIC)
    assert np.array_equal(pixels_of(decode(data, info, resize).to_bytes()), np.asarray(expected))
    assert shrunk_bytes(info, resize) == 64 * 64 * 3
    assert peak_bytes(info, resize) >= 2 * 3 * info.width * info.height


def test_fast_decoding_keeps_four_times_the_target_size():
    data = photograph()
    info = inspect_whole(data, LIMITS)
    exact, fast = (Resize((64, 48), "bicubic", fast=fast) for fast in (False, True))
    assert [reduction(info, size) for size in (exact, fast, 300)] == [1, 4, 4]
    assert reduction(info, Resize((301,), "bicubic", fast=True)) == 1

    slow, quick = (pixels_of(decode(data, info, size).to_bytes()).astype(int) for size in (exact, fast))
    assert slow.shape == quick.shape == (64, 48, 3)
    assert 0 < np.abs(slow - quick).mean() < 3


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_reduced_scale_has_the_colours_of_the_full_one(mode):
    with io.BytesIO() as file:
        Image.open(io.BytesIO(photograph())).convert(mode).save(file, "JPEG", quality=95)
        data = file.getvalue()
    info = inspect_whole(data, LIMITS)
    full, reduced = (decode(data, info, Resize((64, 48), "bicubic", fast=fast)) for fast in (False, True))
    assert np.abs(full.pixels.astype(int) - reduced.pixels).mean() < 3


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
    assert resize_of({**parameters, "resize_library": "pillow-12.1"}, fast=True) == Resize((64,), "bilinear", fast=True)
    assert resize_of({**parameters, **changed}, fast=False) is None
    assert resize_of({}, fast=False) is None
