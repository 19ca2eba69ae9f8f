"""Each image's row has a keyed code, so that no two images share a cache key."""

import time

import cv2
import numpy as np

from bench.attack.collisions import colliding_jpegs, combine, start
from gateway.decoder.in_process import inspect_whole
from gateway.ingest.upload_limits import Limits
from gateway.triton.contract import ENSEMBLE_MODEL, RAW_IMAGE
from gateway.triton.seal import SEAL_BYTES, Seal
from tests.asking import encode
from tests.settings import Settings

LIMITS = Limits.from_settings(Settings(_env_file=None))


def sealed(*payloads: bytes, secret: bytes = b"secret of a test") -> list[bytes]:
    return [Seal(secret).code(each) for each in payloads]


def test_equal_images_and_secrets_have_equal_codes():
    assert sealed(b"image") == sealed(b"image")
    assert sealed(b"image") != sealed(b"image", secret=b"another secret..")


def test_different_images_have_different_codes():
    codes = sealed(b"one", b"another one")
    assert len(set(codes)) == 2
    assert {len(code) for code in codes} == {SEAL_BYTES}


def test_seal_separates_images_with_colliding_cache_keys():
    generator = np.random.default_rng(1)
    cat, orange = (encode(generator.integers(0, 256, (24, width, 3), np.uint8), ".jpg") for width in (24, 40))
    before = start(ENSEMBLE_MODEL, 1, RAW_IMAGE)
    cat, orange = colliding_jpegs(cat, orange, before)
    assert len(cat) == len(orange)
    assert inspect_whole(cat, LIMITS).width == 24
    assert inspect_whole(orange, LIMITS).width == 40
    assert cv2.imdecode(np.frombuffer(orange, np.uint8), cv2.IMREAD_COLOR).shape == (24, 40, 3)

    assert combine(before, cat) == combine(before, orange)
    keys = {combine(before, picture + sealed(picture)[0]) for picture in (cat, orange)}
    assert len(keys) == 2


def test_sealing_takes_little_time():
    image, seal = bytes(8 * 2**20), Seal(b"secret of a test")
    started = time.process_time()
    seal.code(image)
    assert time.process_time() - started < 0.5  # some 7 ms on an idle core
