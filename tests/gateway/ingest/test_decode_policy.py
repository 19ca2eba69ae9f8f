"""Which images are passed on to the preprocessor, and which are decoded before; and the names of files."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.decoder.in_process import prepare
from gateway.decoder.opencv import cv2
from gateway.errors import ImageError, TruncatedImage, UndecodableImage, UnsupportedFormat
from gateway.ingest.image_formats import Header, ImageFormat
from gateway.ingest.inspection import ABOVE_PIXELS, inspect, needs_decoding
from gateway.ingest.upload import MAX_FILENAME_CHARACTERS, clean_filename
from tests.gateway.decoder.test_decoding import difference, pixels
from tests.gateway.ingest.reading import ALWAYS, AUTO, NEVER
from tests.samples import FIRST_IMAGE_MAY_BE_WHOLE, names, sample

SIZE = (67, 45)


def transparent(one):
    return "alpha" in one.variant or "RGBA" in one.variant


def passes(one):
    return (one.format in {"JPEG", "PNG"} and not transparent(one)) or one.name == "WebP lossy"


def as_the_preprocessor_sees(payload):
    return cv2.imdecode(np.frombuffer(payload, np.uint8), cv2.IMREAD_COLOR_RGB)


@pytest.mark.parametrize("name", names())
def test_auto_passes_on_what_the_preprocessor_can_read(name):
    one = sample(name)
    image = prepare(one.data, AUTO)
    assert (image.height, image.width) == one.picture.shape[:2]
    if passes(one) and one.variant != "animated":
        assert image.payload is one.data
    assert image.payload.startswith(b"P6") is not passes(one)
    assert difference(as_the_preprocessor_sees(image.payload), one.picture) <= one.far


@pytest.mark.parametrize("name", names())
def test_always_decodes_to_the_pixels_of_the_preprocessor(name):
    one = sample(name, *SIZE)
    image = prepare(one.data, ALWAYS)
    seen = as_the_preprocessor_sees(image.payload)
    assert (seen == pixels(image.payload)).all()
    if passes(one):
        assert difference(seen, as_the_preprocessor_sees(one.data)) == 0


@pytest.mark.parametrize("name", names())
def test_never_refuses_what_the_preprocessor_cannot_read(name):
    one = sample(name, *SIZE)
    if passes(one):
        assert not prepare(one.data, NEVER).payload.startswith(b"P6")
        return
    with pytest.raises(UnsupportedFormat, match="GATEWAY_DECODE=never"):
        inspect(one.data, NEVER)


def test_auto_decodes_images_of_many_pixels():
    header = Header(ImageFormat.JPEG, 2_000, ABOVE_PIXELS // 2_000)
    assert not needs_decoding(header, AUTO)
    assert needs_decoding(replace(header, height=header.height + 1), AUTO)


def test_only_the_first_frame_of_an_animated_png_is_passed_on():
    one = sample("PNG animated")
    payload = prepare(one.data, AUTO).payload
    assert b"fdAT" in one.data
    assert not any(kind in payload for kind in (b"acTL", b"fcTL", b"fdAT"))
    assert payload.endswith(b"IEND\xaeB`\x82")


@pytest.mark.parametrize("policy", [AUTO, ALWAYS, NEVER], ids=lambda policy: policy.decode.value)
@pytest.mark.parametrize("name", names())
def test_truncated_file_is_always_an_error(name, policy):
    one = sample(name, *SIZE)
    for percent in range(5, 100, 5):
        data = one.data[: len(one.data) * percent // 100]
        if one.variant in {"with a video behind", "padded with zeros"} and b"\xff\xd9" in data:
            continue
        if policy is not NEVER and name in FIRST_IMAGE_MAY_BE_WHOLE:
            with contextlib.suppress(TruncatedImage, UndecodableImage):
                assert difference(pixels(prepare(data, policy).payload), one.picture) <= one.far
            continue
        with pytest.raises(ImageError) as caught:
            prepare(data, policy)
        assert isinstance(caught.value, TruncatedImage | UndecodableImage | UnsupportedFormat)


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("  two words.jpg ", "two words.jpg"),
        ("猫 🐈‍⬛.jpg", "猫 🐈‍⬛.jpg"),
        ("a\0b\r\nc\x1b[31m.jpg", "abc[31m.jpg"),
        ("cat\u202egpj.exe", "catgpj.exe"),
        ("\ud800.jpg", ".jpg"),
        ("", ""),
        ("/", ""),
        ("x" * 256, "x" * 255),
    ],
)
def test_filename_is_cleaned(raw, cleaned):
    assert clean_filename(raw) == cleaned


@given(st.text(max_size=400))
def test_clean_filename_is_short_and_printable_and_no_path(raw):
    cleaned = clean_filename(raw)
    assert len(cleaned) <= MAX_FILENAME_CHARACTERS
    assert not set(cleaned) & set("/\\\0\r\n\t\x1b\u2028\u202e")
    assert clean_filename(cleaned) == cleaned
    cleaned.encode()
