"""The preprocessor on the real Triton: each row gets its own status, and the pixels that training saw."""

import shutil

import cv2
import numpy as np
import pytest
from PIL import Image
from tritonclient.grpc import InferenceServerClient

from gateway.triton.contract import PREPROCESSOR
from gateway_local.server import EmbeddedTriton, StartFailed
from tests.asking import ask, encode, inputs_of, preprocess, unseen_image
from tests.reference import reference_image
from tests.triton_models.test_parameters import WRONG
from tests.tritons import running_triton

OK, EMPTY, INVALID_LENGTH, UNDECODABLE = range(4)


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    generator = np.random.default_rng(0)
    coarse = generator.integers(0, 256, (12, 16, 3), np.uint8)
    return cv2.resize(coarse, (320, 240), interpolation=cv2.INTER_CUBIC)


@pytest.mark.parametrize("extension", [".jpg", ".png", ".webp", ".bmp", ".ppm"])
def test_every_format_is_decoded_as_in_training(triton_client, pixels, extension):
    encoded = encode(pixels, extension)
    statuses, images = preprocess(triton_client, [encoded])
    assert statuses == [OK]
    assert np.allclose(images[0], reference_image(encoded).numpy(), atol=1e-6)


def test_each_row_has_its_status_and_zeros_without_an_image(triton_client, pixels):
    good = encode(pixels, ".jpg")
    rows = {
        "good": (good, len(good), OK),
        "text": (b"this is no image", 16, UNDECODABLE),
        "empty": (b"x", 0, EMPTY),
        "negative length": (good, -1, INVALID_LENGTH),
        "length beyond the padding": (good, 10_000_000, INVALID_LENGTH),
        "zeros": (bytes(100), 100, UNDECODABLE),
        "half a header": (good, 10, UNDECODABLE),
        "good again": (good, len(good), OK),
    }
    statuses, images = preprocess(
        triton_client, [encoded for encoded, _, _ in rows.values()], [length for _, length, _ in rows.values()]
    )
    assert statuses == [status for _, _, status in rows.values()]
    blank = [not image.any() for image in images]
    assert blank == [status != OK for status in statuses]
    assert np.array_equal(images[0], images[-1])


@pytest.mark.parametrize("extension", [".jpg", ".png", ".webp", ".bmp", ".ppm"])
def test_lengths_are_optional(triton_client, pixels, extension):
    """Zeros at the end of a bitmap are pixels, and those at the end of a JPEG or PNG are padding."""
    dark = pixels.copy()
    dark[:40] = dark[-40:] = 0
    images = [encode(pixels, extension), encode(dark, extension), encode(pixels[:100], extension)]
    with_lengths = preprocess(triton_client, images)
    raw_image, _ = inputs_of(images)
    result = triton_client.infer(PREPROCESSOR, [raw_image], client_timeout=60)
    assert result.as_numpy("IMAGE_STATUS")[:, 0].tolist() == with_lengths[0] == [OK, OK, OK]
    assert np.array_equal(result.as_numpy("PREPROCESSED_IMAGE"), with_lengths[1])


def test_cut_off_jpeg_without_a_length_is_refused(triton_client, pixels):
    good = encode(pixels, ".jpg")
    raw_image, _ = inputs_of([good[: len(good) // 2], good])
    result = triton_client.infer(PREPROCESSOR, [raw_image], client_timeout=60)
    assert result.as_numpy("IMAGE_STATUS")[:, 0].tolist() == [UNDECODABLE, OK]


def test_gray_alpha_and_16_bit_images_become_8_bit_rgb(triton_client, pixels):
    gray = pixels[..., :1].repeat(3, axis=2)
    forms = [
        cv2.imencode(".png", gray[..., 0])[1].tobytes(),
        cv2.imencode(".png", np.dstack([gray, np.full(gray.shape[:2], 255, np.uint8)]))[1].tobytes(),
        cv2.imencode(".png", gray[..., 0].astype(np.uint16) * 257)[1].tobytes(),
    ]
    statuses, images = preprocess(triton_client, forms)
    assert statuses == [OK] * 3
    assert np.array_equal(images[0], images[1])
    assert np.abs(images[0] - images[2]).max() <= 2.01 / 255


@pytest.mark.parametrize("shape", [(1, 16_384), (16_384, 1), (1, 1), (3, 5_000)])
def test_image_of_any_shape_is_preprocessed(triton_client, shape):
    statuses, images = preprocess(triton_client, [encode(np.full((*shape, 3), 255, np.uint8), ".png")])
    assert statuses == [OK]
    assert np.allclose(images, 1.0)


def test_bad_rows_do_not_fail_other_rows_or_requests(triton_client, pixels):
    good = encode(pixels, ".jpg")
    alone = ask(triton_client, [good])[0].probabilities
    mixed = ask(triton_client, [b"bad", good, b"", good, bytes(999)], [3, len(good), 0, len(good), -5])
    assert [answer.status for answer in mixed] == [UNDECODABLE, OK, EMPTY, OK, INVALID_LENGTH]
    for answer in (mixed[1], mixed[3]):
        assert np.allclose(answer.probabilities, alone, atol=1e-5)
    assert ask(triton_client, [unseen_image()])[0].status == OK


@pytest.fixture(scope="module")
def variants(runtime, model_repository, tmp_path_factory):
    """A Triton with the preprocessor under other parameters, a model for each."""
    repository = tmp_path_factory.mktemp("variants")
    for name, changes in {
        "torch": {'"pillow"': '"torch"'},
        "shorter_side": {'"224,224"': '"256"'},
        "imagenet": {
            'key: "mean" value: { string_value: "0.5,0.5,0.5"': 'key: "mean" value: { string_value: "0.1,0.2,0.3"'
        },
    }.items():
        shutil.copytree(model_repository / PREPROCESSOR, repository / name)
        config = repository / name / "config.pbtxt"
        text = config.read_text().replace('name: "preprocessor"', f'name: "{name}"').replace("count: 2", "count: 1")
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
        config.write_text(text)
    with running_triton(runtime, repository) as server, InferenceServerClient(server.url) as client:
        yield client


def test_torch_resize_differs_by_fewer_than_three_levels(variants, pixels):
    encoded = encode(pixels, ".png")
    statuses, images = preprocess(variants, [encoded], model="torch")
    difference = np.abs(images[0] - reference_image(encoded).numpy())
    assert statuses == [OK]
    assert difference.max() < 5 / 255
    assert (difference > 0.1 / 255).mean() < 0.02


def test_single_resize_size_is_the_shorter_side_with_centre_crop(variants, pixels):
    statuses, images = preprocess(variants, [encode(pixels, ".png")], model="shorter_side")
    from torchvision.transforms import v2

    resized = v2.functional.resize(Image.fromarray(pixels), [256], v2.InterpolationMode.BICUBIC)
    wanted = v2.functional.center_crop(resized, [224])
    assert statuses == [OK]
    assert np.allclose(images[0], np.asarray(wanted).transpose(2, 0, 1) / 127.5 - 1, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 8_000), (8_000, 2)])
def test_long_strip_is_cropped_before_the_resize(variants, shape):
    strip = np.zeros((*shape, 3), np.uint8)
    middle = slice(3_900, 4_100)
    strip[(slice(None), middle) if shape[0] == 2 else (middle, slice(None))] = 255
    statuses, images = preprocess(variants, [encode(strip, ".png")], model="shorter_side")
    assert statuses == [OK]
    assert np.allclose(images, 1.0)


def test_mean_and_std_come_from_the_configuration(variants):
    white = encode(np.full((50, 50, 3), 255, np.uint8), ".png")
    _, images = preprocess(variants, [white], model="imagenet")
    assert np.allclose(images[0].mean(axis=(1, 2)), [0.9 / 0.5, 0.8 / 0.5, 0.7 / 0.5], atol=1e-5)


def test_invalid_parameter_fails_the_start_and_is_named(runtime, model_repository, tmp_path):
    """One of them here, all of them in test_parameters."""
    old, new, reason = WRONG["crop"]
    shutil.copytree(model_repository / PREPROCESSOR, tmp_path / "models" / "crop")
    config = tmp_path / "models" / "crop" / "config.pbtxt"
    text = config.read_text().replace('name: "preprocessor"', 'name: "crop"').replace("count: 2", "count: 1")
    config.write_text(text.replace(old, new))
    server = EmbeddedTriton(runtime, tmp_path / "models", on_log=print)
    server.start()
    try:
        with pytest.raises(StartFailed) as failure:
            server.wait_ready()
    finally:
        server.stop()
    assert reason in "\n".join(line for line in str(failure.value).splitlines() if "'crop'" in line)
