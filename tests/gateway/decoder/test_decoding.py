import numpy as np
import pytest
from PIL import Image

from gateway.decoder.decoding import decode
from gateway.decoder.in_process import whole_header
from gateway.errors import UndecodableImage
from gateway.ingest.image_formats import Header, ImageFormat
from tests import encoders
from tests.gateway.ingest.reading import LIMITS
from tests.samples import STORED_TURNED, by_pillow, encode, exif, names, photograph, sample, turned

# Pillow converts YCbCr and CMYK by other formulas than OpenCV.
FAR_FROM_PILLOW = {"JPEG CMYK": 1, "TIFF YCbCr": 1}


def pixels(ppm):
    magic, size, depth, values = ppm.split(b"\n", 3)
    assert (magic, depth) == (b"P6", b"255")
    width, height = map(int, size.split())
    return np.frombuffer(values, np.uint8).reshape(height, width, 3)


def decoded(data, max_side=16_384):
    return decode(data, whole_header(data, LIMITS), max_side)


def difference(one, other):
    assert one.shape == other.shape
    return np.abs(one.astype(int) - other).mean()


@pytest.mark.parametrize("name", names())
def test_every_form_decodes_to_the_same_image_and_like_pillow(name):
    one = sample(name)
    shown = decoded(one.data)
    assert difference(shown, one.picture) <= one.far
    assert difference(shown, by_pillow(one.data)) <= FAR_FROM_PILLOW.get(one.name, 0.02)


@pytest.mark.parametrize("size", [(64, 1), (1, 64), (2, 3)], ids=str)
@pytest.mark.parametrize("name", names())
def test_smallest_images_are_decoded(name, size):
    one = sample(name, *size)
    assert decoded(one.data).shape == one.picture.shape


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_transparent_level_of_a_gray_png_is_white(bits):
    levels = np.array([[0, 1], [1, 0]])[..., None] * (2**bits - 1) // (1 if bits == 1 else 3)
    key = int(levels.max())
    data = encoders.png(levels, 0, bits, chunks=((b"tRNS", key.to_bytes(2, "big")),))
    assert decoded(data)[..., 0].tolist() == [[0, 255], [255, 0]]


def test_transparent_colour_of_a_png_is_white():
    colours = np.array([[[10, 20, 30], [10, 20, 31]]])
    data = encoders.png(colours, 2, 8, chunks=((b"tRNS", bytes([0, 10, 0, 20, 0, 30])),))
    assert decoded(data).tolist() == [[[255, 255, 255], [10, 20, 31]]]


def test_transparent_pixels_are_white_whatever_their_colour():
    hidden = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    for image_format in ("PNG", "WEBP", "TIFF", "GIF"):
        options = {"lossless": True, "exact": True} if image_format == "WEBP" else {}
        assert (decoded(encode(hidden, image_format, **options)) == 255).all(), image_format


@pytest.mark.parametrize("name", ["PNG RGB 8 bit", "JPEG baseline", "PNG RGBA 16 bit", "TIFF orientation 6"])
def test_large_image_is_shrunk_until_its_shorter_side_fits(name):
    one = sample(name)
    shrunk = decoded(one.data, max_side=100)
    assert shrunk.shape == (100, 150, 3)
    reference = Image.fromarray(by_pillow(one.data)).resize((150, 100), Image.Resampling.BOX)
    assert difference(shrunk, np.asarray(reference)) < 2.5


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_jpeg_is_decoded_at_a_reduced_scale_and_upright(factor):
    large = photograph().resize((451 * factor + 1, 300 * factor + 1))
    reference = np.asarray(large.resize((451, 300), Image.Resampling.BOX))
    for orientation in STORED_TURNED:
        data = encode(turned(large, orientation), "JPEG", quality=90, exif=exif(orientation))
        shrunk = decoded(data, max_side=300)
        assert shrunk.shape == (300, 451, 3)
        assert difference(shrunk, reference) < 4, orientation


def test_very_long_image_keeps_at_least_one_pixel():
    data = encode(Image.new("RGB", (1, 2_000), "red"), "PNG")
    assert decoded(data, max_side=64).shape == (2_000, 1, 3)


@pytest.mark.parametrize("name", ["PNG RGB 8 bit", "WebP lossless", "GIF palette"])
def test_damaged_pixels_are_undecodable(name):
    data = bytearray(sample(name).data)
    data[1_500:2_500] = b"\xff" * 1_000
    info = whole_header(bytes(data), LIMITS)
    with pytest.raises(UndecodableImage):
        decode(bytes(data), info, 256)


def test_header_with_another_size_is_undecodable():
    data = sample("PNG RGB 8 bit").data
    with pytest.raises(UndecodableImage):
        decode(data, Header(ImageFormat.PNG, 450, 300), 256)
