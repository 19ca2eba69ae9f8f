"""Files that would cost a decoder more than they say: refused, or sent on without what makes them so.

At the limit and one past it; what a header costs to read is timed.
"""

import struct
import time
import zlib

import pytest

from gateway.decoder.in_process import prepare
from gateway.errors import ImageError, TooCostly
from gateway.ingest.formats.jpeg import MOST_SCANNED_PIXELS, MOST_SCANS
from gateway.ingest.image_formats import decoded_bytes, memory_limit
from gateway.ingest.inspection import inspect
from tests.encoders import png_chunk, png_header
from tests.gateway.ingest.reading import AUTO, LIMITS, allocates_at_most
from tests.samples import encode, photograph, sample

EMPTY_SCAN = b"\xff\xda" + struct.pack(">HBBBBBB", 8, 1, 1, 0, 1, 63, 0x21) + b"\x2a\xaa"
"""An empty refinement scan: 12 bytes, and a pass over the whole image."""


def read(data: bytes):
    return inspect(data, LIMITS)


def progressive(side: int = 64, scans: int = 0, between: bytes = b"", behind: bytes = b"") -> bytes:
    """A progressive JPEG with this number of scans."""
    data = encode(photograph().resize((side, side)), "JPEG", progressive=True)
    more = max(scans - data.count(b"\xff\xda"), 0)
    return data.removesuffix(b"\xff\xd9") + between + EMPTY_SCAN * more + b"\xff\xd9" + behind


def test_scans_of_a_jpeg_are_limited_by_its_pixels():
    allowed = MOST_SCANNED_PIXELS // 2_000**2
    assert read(progressive(2_000, allowed)).width == 2_000
    with pytest.raises(TooCostly, match="scans"):
        read(progressive(2_000, allowed + 1))


@pytest.mark.parametrize("between", [b"", b"\xff\xfe\x00\x04\xff\xd9"], ids=["", "end marker in a comment"])
def test_scans_of_a_small_jpeg_are_limited(between):
    assert read(progressive(64, MOST_SCANS, between)).width == 64
    with pytest.raises(TooCostly):
        read(progressive(64, MOST_SCANS + 1, between))


def test_bytes_after_the_image_are_not_scans():
    assert read(progressive(64, 20, behind=EMPTY_SCAN * 2_000)).width == 64


def test_scans_of_a_baseline_jpeg_are_counted():
    data = bytearray(encode(photograph().resize((64, 64)), "JPEG"))
    place = data.index(b"\xff\xda")
    data[place : place + 14] = b"\xff\xda" + struct.pack(">HBBBBBB", 8, 1, 1, 0, 0, 63, 0)
    data[-2:] = EMPTY_SCAN * MOST_SCANS + b"\xff\xd9"
    with pytest.raises(TooCostly):
        read(bytes(data))


@pytest.mark.parametrize(("subsampling", "components"), [(0, 3), (2, 1.5)])
def test_coefficients_of_a_progressive_jpeg_count_as_memory(subsampling, components):
    data = encode(photograph().resize((1_600, 1_600)), "JPEG", progressive=True, subsampling=subsampling)
    info = read(data)
    coefficients = 1_600 * 1_600 * 2 * components
    assert info.coefficient_bytes == coefficients
    assert decoded_bytes(info, 100) == 200 * 200 * 3 + coefficients
    assert memory_limit(info, len(data)) > coefficients
    assert read(sample("JPEG baseline").data).coefficient_bytes == 0


def text_chunks(count: int) -> bytes:
    body = zlib.compress(bytes(2**20))
    return b"".join(
        png_chunk(kind, name + b"\0" + body)
        for number in range(count)
        for kind, name in (
            (b"zTXt", b"t%d\0" % number),
            (b"iCCP", b"p%d\0" % number),
            (b"iTXt", b"i%d\0\1\0\0" % number),
        )
    )


def test_text_and_profile_chunks_of_a_png_are_removed():
    plain = encode(photograph(), "PNG")
    payload = prepare(plain[:33] + text_chunks(50) + plain[33:], AUTO).payload
    assert payload == prepare(plain, AUTO).payload


def test_long_text_chunk_is_read_up_to_a_limit():
    plain = encode(photograph(), "PNG")
    for key in (b"XML:com.adobe.xmp", b"Raw profile type exif"):
        data = plain[:33] + png_chunk(b"tEXt", key + b"\0" + b"00\n" * 6_000_000) + plain[33:]
        with allocates_at_most(10_000_000):
            read(data)


COSTLY = {
    "JPEG of empty segments": lambda: b"\xff\xd8" + b"\xff\xfe\0\2" * 2_000_000,
    "JPEG of fill bytes": lambda: b"\xff\xd8" + b"\xff" * 8_000_000,
    "JPEG of stuffed bytes": lambda: b"\xff\xd8\xff" + b"\xff\0" * 4_000_000,
    "JPEG of restart markers": lambda: b"\xff\xd8" + b"\xff\xd0" * 4_000_000,
    "PNG of empty chunks": lambda: png_header(9, 9) + png_chunk(b"tEXt", b"") * 700_000,
    "WebP of empty chunks": lambda: (
        b"RIFF" + struct.pack("<I", 8_000_022) + b"WEBPVP8X\x0a\0\0\0\x08" + bytes(9) + b"XXXX\0\0\0\0" * 1_000_000
    ),
    "JPEG of comments between scans": lambda: progressive(64, MOST_SCANS + 1, between=b"\xff\xfe\0\2" * 4_000_000),
}
"""Files of megabytes that are nothing but header."""


@pytest.mark.parametrize("name", COSTLY)
def test_every_costly_header_is_refused_at_little_cost(name):
    data = COSTLY[name]()
    started = time.process_time()
    with pytest.raises(ImageError):
        read(data)
    assert time.process_time() - started < 0.25
