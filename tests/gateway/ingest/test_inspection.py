import contextlib
import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.decoder.in_process import prepare, whole_header
from gateway.errors import (
    ImageError,
    ImageTooLarge,
    UnsupportedFormat,
)
from gateway.ingest.image_formats import AVAILABLE, Header, ImageFormat
from gateway.ingest.inspection import check_size, inspect, recognize
from tests import encoders
from tests.gateway.ingest.reading import AUTO, LIMITS, allocates_at_most, limits
from tests.samples import encode, exif, names, photograph, sample

SIGNATURES = [
    b"\xff\xd8\xff",
    encoders.PNG_SIGNATURE,
    encoders.png_header(5, 5),
    b"RIFF\x40\0\0\0WEBPVP8X\x0a\0\0\0",
    b"RIFF\x40\0\0\0WEBPVP8 ",
    b"BM",
    b"GIF89a",
    b"II*\0\x08\0\0\0",
    b"MM\0+\0\x08\0\0",
    b"\0\0\0\x18ftypavif\0\0\0\0avifmif1",
    b"\0\0\0\x18ftypheic\0\0\0\0mif1heic",
    b"\0\0\0\x0cjP  \r\n\x87\n",
    b"\xff\x4f\xff\x51",
]
OTHERS = {
    "The file is a video (send its frames to WS /stream": b"\0\0\0\x18ftypisom" + bytes(64),
    "The file is not a JPEG": b"BMW is a maker of cars, and this is a text.",
}
PASSED_ON = {"JPEG", "PNG", "WebP"}


def ftyp(*brands: bytes, size: int = 0, version: bytes = bytes(4)) -> bytes:
    """A file type box: the major brand, a version, and compatible brands (ISO/IEC 14496-12, 4.3)."""
    content = b"ftyp" + brands[0] + version + b"".join(brands[1:])
    return (size or 4 + len(content)).to_bytes(4, "big") + content


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (ftyp(b"avif"), ImageFormat.AVIF),
        (ftyp(b"isom", b"avif"), ImageFormat.AVIF),
        (ftyp(b"mif1", b"iso2", b"iso3", b"avif"), ImageFormat.AVIF),
        (ftyp(b"mif1", b"iso2"), ImageFormat.HEIC),
        (ftyp(b"isom", version=b"avif"), None),
        (ftyp(b"isom", b"xxav", b"ifxx"), None),
        (ftyp(b"isom", b"avif", size=20), ImageFormat.AVIF),
        (ftyp(b"isom", b"avif", size=19), None),
        (ftyp(b"isom", b"avif")[:-1], None),
        (ftyp(b"isom", *[b"iso2"] * 251, b"avif"), ImageFormat.AVIF),
        (ftyp(b"isom", *[b"iso2"] * 252, b"avif"), None),
        (ftyp(b"avif").replace(b"ftyp", b"free"), None),
    ],
)
def test_media_files_are_recognised_by_their_brands(data, expected):
    assert recognize(data) is expected


def code(data):
    with pytest.raises(ImageError) as caught:
        prepare(data, AUTO)
    return caught.value.code


@pytest.mark.parametrize("name", names())
def test_every_form_is_recognised_by_its_bytes(name):
    one = sample(name)
    info = whole_header(one.data, LIMITS)
    assert isinstance(inspect(one.data, LIMITS), Header if one.format in PASSED_ON else ImageFormat)
    height, width = one.picture.shape[:2]
    assert (info.format.value, info.width, info.height) == (one.format, width, height)
    if "orientation" in one.variant and one.format != "TIFF":  # whose decoder turns it
        assert info.orientation == int(one.variant[-1])
    if "alpha" in one.variant or one.format == "GIF":
        assert info.has_alpha


PASSED = ["JPEG baseline", "PNG RGB 8 bit", "WebP lossy"]


@pytest.mark.parametrize(
    "name", [*PASSED, *names("AVIF", "JPEG 2000"), "BMP 32 bit", "TIFF RGB 8 bit raw", "HEIC lossy"]
)
def test_file_without_its_last_bytes_is_refused(name):
    data = sample(name).data
    for missing in (1, 2, 3):
        assert code(data[:-missing]) in (
            {"truncated_image"} if name in PASSED else {"truncated_image", "undecodable_image"}
        )


@pytest.mark.parametrize("name", ["JPEG baseline", "PNG RGB 8 bit", "WebP lossy", "BMP 24 bit", "TIFF tiles"])
def test_bytes_after_an_image_are_ignored(name):
    one = sample(name)
    assert whole_header(one.data + small("PNG") + b"PK\3\4 a polyglot", LIMITS) == whole_header(one.data, LIMITS)


@pytest.mark.parametrize("kind", OTHERS)
def test_unsupported_format_error_lists_the_supported_ones(kind):
    with pytest.raises(UnsupportedFormat) as caught:
        inspect(OTHERS[kind], LIMITS)
    assert kind in caught.value.message
    assert "JPEG, PNG, WebP, BMP, GIF, TIFF, AVIF, HEIC or JPEG 2000" in caught.value.message


def test_heic_without_its_decoder_is_refused_with_advice(monkeypatch):
    monkeypatch.setattr("gateway.ingest.image_formats.AVAILABLE", AVAILABLE - {ImageFormat.HEIC})
    with pytest.raises(UnsupportedFormat) as caught:
        inspect(sample("HEIC lossy").data, LIMITS)
    assert "send JPEG" in caught.value.message
    assert "install pillow-heif (the extra heic; `make up EXTRAS=heic`)" in caught.value.message


def test_image_beyond_a_limit_is_told_its_size_and_what_to_do():
    with pytest.raises(ImageTooLarge) as caught:
        check_size(Header(ImageFormat.JPEG, 12_000, 9_000), limits(max_image_pixels=50_000_000))
    assert "108,000,000 pixels (12000 × 9000); at most 50,000,000 are allowed: scale it down" in caught.value.message
    with pytest.raises(ImageTooLarge, match="20000 × 10 pixels; a side may have at most 16,384: scale it down"):
        check_size(Header(ImageFormat.JPEG, 20_000, 10), LIMITS)


def small(form):
    return encode(photograph().resize((64, 64)), form)


def png_with(position, chunk):
    data = sample("PNG RGB 8 bit").data
    return data[:position] + chunk + data[position:]


FOUR_GIBIBYTES = struct.pack(">I4s", 0xFFFFFFF0, b"IDAT")
WIDTH_64, WIDTH_0 = (struct.pack("<HHII", 256, 4, 1, width) for width in (64, 0))
FRAME_64, FRAME_0 = (struct.pack("<BHHHH", ord(","), 0, 0, width, 64) for width in (64, 0))
SCRIPT = b"<script>alert(1)</script>"
BROKEN = {
    "PNG of no width": ("invalid_image", lambda: encoders.png_header(0, 64) + small("PNG")[33:]),
    "JPEG of no height": ("invalid_image", lambda: small("JPEG").replace(b"\0\x40\0\x40", b"\0\0\0\x40", 1)),
    "GIF of no width": (
        "undecodable_image",
        lambda: (small("GIF")[:6] + b"\0\0" + small("GIF")[8:]).replace(FRAME_64, FRAME_0),
    ),
    "TIFF of no width": ("undecodable_image", lambda: small("TIFF").replace(WIDTH_64, WIDTH_0)),
    "WebP whose picture is empty": (
        "undecodable_image",
        lambda: b"RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0" + bytes(10) + b"VP8 \0\0\0\0",
    ),
    "WebP of no width": ("invalid_image", lambda: small("WEBP").replace(b"\x9d\x01\x2a\x40\0", b"\x9d\x01\x2a\0\0")),
    "WebP longer than its file": (
        "truncated_image",
        lambda: small("WEBP")[:4] + struct.pack("<I", 2**31) + small("WEBP")[8:],
    ),
    "PNG with a wrong checksum": ("invalid_image", lambda: small("PNG").replace(b"\0\0\0\x40", b"\0\0\0\x41", 1)),
    "PNG with too few bytes for its pixels": (
        "invalid_image",
        lambda: encoders.png_header(7_000, 7_000) + sample("PNG gray 1 bit").data[33:],
    ),
    "PNG that declares four gibibytes at once": ("truncated_image", lambda: png_with(33, FOUR_GIBIBYTES)),
    "PNG that declares four gibibytes at its end": ("truncated_image", lambda: png_with(-12, FOUR_GIBIBYTES)),
    "PNG in Apple's own form": (
        "unsupported_format",
        lambda: small("PNG")[:8] + b"\0\0\0\4CgBI" + bytes(8) + small("PNG")[8:],
    ),
    "JPEG of twelve bits": (
        "unsupported_format",
        lambda: sample("JPEG baseline").data.replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"),
    ),
    "JPEG that ends with its thumbnail": ("truncated_image", lambda: sample("JPEG with a thumbnail").data[:-2]),
    "JPEG segment without a length": (
        "invalid_image",
        lambda: small("JPEG").replace(b"\xff\xe0", b"\xff\xe1\0\0", 1),
    ),
    "JPEG's name on a script": ("truncated_image", lambda: b"\xff\xd8\xff\xe0" + SCRIPT),
    "GIF that is a script": ("undecodable_image", lambda: b"GIF89a=1;" + SCRIPT),
    "PDF and JPEG": ("unsupported_format", lambda: b"%PDF-1.7\n" + small("JPEG")),
    "nothing": ("empty_file", lambda: b""),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_file_has_its_error(name):
    expected, make = BROKEN[name]
    assert code(make()) == expected


def test_unknown_orientation_is_ignored():
    info = whole_header(encode(photograph(), "JPEG", exif=exif(9)), LIMITS)
    assert info.orientation == 1


@pytest.mark.parametrize("mode", ["F", "I"])
def test_tiff_of_signed_or_float_samples_is_refused(mode):
    with pytest.raises(UnsupportedFormat, match=r"unsigned integers|bits per channel"):
        whole_header(encode(photograph().convert(mode), "TIFF"), LIMITS)


def test_decompression_bomb_is_refused_at_little_cost():
    bomb = encoders.png_bomb(20_000, 20_000)
    assert len(bomb) < 250_000
    with allocates_at_most(2**20):
        started = time.process_time()
        assert code(bomb) == "image_too_large"
        assert time.process_time() - started < 0.05


@given(st.sampled_from([b"", *SIGNATURES]), st.binary(max_size=300))
def test_any_bytes_are_an_image_or_an_image_error(signature, junk):
    with contextlib.suppress(ImageError):
        info = whole_header(signature + junk, LIMITS)
        assert info.width > 0
        assert info.height > 0
