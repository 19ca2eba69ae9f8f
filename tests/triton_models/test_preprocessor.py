"""The preprocessor on the real Triton: each row gets its own status, and the pixels that training saw.

At the end, how Triton fills batches: by joining requests, and with as many images as one request may have.
"""

from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient

from gateway.triton.contract import ENSEMBLE_MODEL, IMAGE_STATUS, PREDICTION, PREPROCESSOR
from tests.asking import encode, inputs_of, preprocess
from tests.processes import wait_for
from tests.reference import reference_image

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


def test_requests_of_different_lengths_share_batches(triton):
    """Each call is a separate request, with an image of another height than the other threads send."""
    calls, threads = 20, 16

    def counts() -> tuple[int, int]:
        with InferenceServerClient(triton.url) as client:
            (statistics,) = client.get_inference_statistics(PREPROCESSOR).model_stats
        return statistics.inference_count, statistics.execution_count

    def ask(number: int) -> list[int]:
        image = [encode(np.full((64 + number, 48, 3), number, np.uint8), ".bmp")]
        with InferenceServerClient(triton.url) as client:
            return [status for _ in range(calls) for status in preprocess(client, image)[0]]

    before = counts()
    with ThreadPoolExecutor(threads) as pool:
        statuses = list(pool.map(ask, range(threads)))
    assert statuses == [[OK] * calls] * threads
    # Triton counts an execution after it has sent its responses; the gateways of other tests look after the server.
    wait_for(lambda: counts()[0] - before[0] >= calls * threads)
    inferences, executions = (after - earlier for after, earlier in zip(counts(), before, strict=True))
    assert executions < inferences


def test_each_row_of_the_largest_batch_is_answered_like_its_image_alone(triton_client):
    generator = np.random.default_rng(1)
    coarse = generator.integers(0, 256, (64, 4, 4, 3), np.uint8)
    images = [encode(cv2.resize(each, (64, 64), interpolation=cv2.INTER_CUBIC), ".png") for each in coarse]

    def probabilities(batch: list[bytes]) -> np.ndarray:
        result = triton_client.infer(ENSEMBLE_MODEL, inputs_of(batch), client_timeout=60)
        assert not result.as_numpy(IMAGE_STATUS).any()
        return result.as_numpy(PREDICTION)

    together = probabilities(images)
    alone = np.concatenate([probabilities([image]) for image in images])
    assert np.allclose(together, alone, atol=1e-5)
    distances = np.abs(alone[:, None] - alone).max(axis=2) + np.eye(64)
    assert distances.min() > 1e-3
