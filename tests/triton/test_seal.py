"""Each picture's row carries a code that nobody without the secret can compute, so that no two share a cache key."""

import time

import cv2
import numpy as np
import pytest

from bench.attack.collisions import colliding_jpegs, combine, start
from gateway.inference.backend import Batch
from gateway.ingest.inspection import inspect
from gateway.ingest.padding import SEAL_BYTES, pad
from gateway.ingest.upload_limits import Limits
from gateway.settings import Settings
from gateway.triton.contract import ENSEMBLE_MODEL, RAW_IMAGE
from gateway.triton.seal import Seal
from tests.asking import encode

LIMITS = Limits.from_settings(Settings(_env_file=None))


def sealed(*payloads: bytes, secret: bytes = b"secret of a test") -> Batch:
    batch = Batch(*pad(payloads))
    Seal(secret).apply(batch)
    return batch


def test_the_images_bytes_and_the_zeros_behind_them_stay_as_they_are():
    batch = sealed(b"a longer image", b"short")
    assert batch.raw_image[0, :14].tobytes() == b"a longer image"
    assert batch.raw_image[1, :14].tobytes() == b"short" + bytes(9)
    assert batch.raw_image_length.ravel().tolist() == [14, 5]


def test_the_same_picture_has_the_same_row_whoever_seals_it_with_the_secret():
    assert np.array_equal(sealed(b"image").raw_image, sealed(b"image").raw_image)
    assert not np.array_equal(sealed(b"image").raw_image, sealed(b"image", secret=b"another secret..").raw_image)


def test_codes_identify_pictures_whatever_travels_with_them():
    batch, alone = Batch(*pad([b"one", b"another one"])), Batch(*pad([b"one"]))
    seal = Seal(b"secret of a test")
    codes = seal.apply(batch)
    assert len(set(codes)) == 2
    assert {len(code) for code in codes} == {SEAL_BYTES}
    assert seal.apply(alone) == codes[:1]
    assert batch.raw_image[1, -SEAL_BYTES:].tobytes() == codes[1]


def test_an_image_that_reaches_into_the_room_for_the_code_is_refused():
    batch = Batch(np.zeros((1, 20), np.uint8), np.array([[10]], np.int32))
    with pytest.raises(ValueError, match="behind its longest image"):
        Seal(b"secret of a test").apply(batch)


def test_crafted_pictures_with_one_key_have_two_once_they_are_sealed():
    generator = np.random.default_rng(1)
    cat, orange = (encode(generator.integers(0, 256, (24, width, 3), np.uint8), ".jpg") for width in (24, 40))
    before = start(ENSEMBLE_MODEL, 1, RAW_IMAGE)
    cat, orange = colliding_jpegs(cat, orange, before)
    assert len(cat) == len(orange)
    assert inspect(cat, LIMITS).width == 24
    assert inspect(orange, LIMITS).width == 40
    assert cv2.imdecode(np.frombuffer(orange, np.uint8), cv2.IMREAD_COLOR).shape == (24, 40, 3)

    plain, other_plain = Batch(*pad([cat])), Batch(*pad([orange]))
    assert combine(before, plain.raw_image.tobytes()) == combine(before, other_plain.raw_image.tobytes())
    keys = {combine(before, sealed(picture).raw_image.tobytes()) for picture in (cat, orange)}
    assert len(keys) == 2


def test_sealing_costs_little_beside_what_it_seals():
    batch, seal = Batch(*pad([bytes(8 * 2**20)])), Seal(b"secret of a test")
    started = time.process_time()
    seal.apply(batch)
    assert time.process_time() - started < 0.5  # some 7 ms on an idle core
