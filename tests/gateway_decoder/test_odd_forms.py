"""Forms that OpenCV cannot open or decodes wrong: decoded to Pillow's pixels."""

import struct

import numpy as np
import pytest
import tifffile

from gateway.errors import ImageError
from gateway.ingest.upload import Upload
from gateway_decoder.in_process import prepare
from gateway_decoder.opencv import cv2
from tests.gateway.ingest.reading import ALWAYS, AUTO
from tests.gateway_decoder.test_decoding import difference
from tests.samples import by_pillow, encode, photograph


def cat():
    return photograph().resize((61, 40))


def gray():
    return np.asarray(cat().convert("L"))


def by_tifffile(values, tmp_path, **options):
    tifffile.imwrite(tmp_path / "a.tif", values, metadata=None, **options)
    return (tmp_path / "a.tif").read_bytes()


def gray_tiff(bits):
    """TIFF 6.0: gray levels of a few bits, black is zero, one strip."""
    levels = gray() >> (8 - bits)
    height, width = levels.shape
    unpacked = np.unpackbits(levels[..., None], axis=2)[..., 8 - bits :].reshape(height, -1)
    strip = np.packbits(unpacked, axis=1).tobytes()
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: 1, 273: 8, 277: 1, 278: height, 279: len(strip)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<I", 8 + len(strip)) + strip + struct.pack("<H", len(tags)) + entries + bytes(4)


def gif(*, background=0, palette=True):
    data = bytearray(encode(cat().convert("L"), "GIF"))
    data[11] = background
    if palette:
        return bytes(data)
    colours = 3 * (2 << (data[10] & 7))
    data[10] &= 0x7F
    del data[13 : 13 + colours]
    return bytes(data)


def bmp(*, planes):
    data = bytearray(encode(cat().convert("1"), "BMP"))
    struct.pack_into("<H", data, 26, planes)
    return bytes(data)


def overrun_bmp():
    """RLE8 whose first run is longer than the row."""
    data = bytearray(encode(cat().quantize(16), "BMP"))
    struct.pack_into("<I", data, 30, 1)
    (offset,) = struct.unpack_from("<I", data, 10)
    rows = b"\xff\1" * 8 + b"\0\0" + b"\x3d\2\0\0" * 39 + b"\0\1"
    struct.pack_into("<I", data, 34, len(rows))
    return bytes(data[:offset]) + rows


FORMS = {
    "TIFF LZMA": lambda folder: encode(cat(), "TIFF", compression="lzma"),
    "TIFF Zstandard": lambda folder: encode(cat(), "TIFF", compression="zstd"),
    "TIFF gray 2 bit": lambda folder: gray_tiff(2),
    "TIFF gray 4 bit": lambda folder: gray_tiff(4),
    "TIFF gray with alpha": lambda folder: encode(cat().convert("LA"), "TIFF"),
    "TIFF gray with an extra sample": lambda folder: by_tifffile(
        np.dstack([gray(), gray()]), folder, photometric="minisblack", extrasamples=["unspecified"]
    ),
    "TIFF RGB with two extra samples": lambda folder: by_tifffile(
        np.dstack([np.asarray(cat()), gray(), gray()]),
        folder,
        photometric="rgb",
        extrasamples=["unspecified", "unspecified"],
    ),
    "TIFF CIELab": lambda folder: encode(cat().convert("LAB"), "TIFF"),
    "TIFF CMYK 16 bit": lambda folder: by_tifffile(
        np.asarray(cat().convert("CMYK")).astype(np.uint16) * 257, folder, photometric="separated"
    ),
    "GIF without a palette": lambda folder: gif(palette=False),
    "GIF with a background outside its palette": lambda folder: gif(background=255),
    "BMP 1 bit with three planes": lambda folder: bmp(planes=3),
    "BMP 1 bit without planes": lambda folder: bmp(planes=0),
    "DIB 24 bit": lambda folder: encode(cat(), "BMP")[14:],
    "DIB 8 bit": lambda folder: encode(cat().quantize(64), "BMP")[14:],
    "DIB 1 bit": lambda folder: encode(cat().convert("1"), "BMP")[14:],
}


def seen(data, policy):
    """The pixels that the preprocessor decodes."""
    payload = prepare(Upload(0, "odd", data), policy).payload
    return cv2.imdecode(np.frombuffer(payload, np.uint8), cv2.IMREAD_COLOR_RGB)


@pytest.mark.parametrize("policy", [AUTO, ALWAYS], ids=["auto", "always"])
@pytest.mark.parametrize("name", FORMS)
def test_odd_form_has_the_pixels_of_pillow(name, policy, tmp_path):
    data = FORMS[name](tmp_path)
    assert difference(seen(data, policy), by_pillow(data)) == 0


def test_bitmap_with_overlong_runs_is_decoded():
    data = overrun_bmp()
    assert difference(seen(data, AUTO), by_pillow(data)) == 0


@pytest.mark.parametrize("name", FORMS)
def test_truncated_odd_form_is_an_image_error(name, tmp_path):
    data = FORMS[name](tmp_path)
    with pytest.raises(ImageError):
        prepare(Upload(0, "odd", data[: len(data) // 2]), AUTO)
