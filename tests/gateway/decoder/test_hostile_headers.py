"""Hostile files of formats whose header a decoder's process reads: refused at a limited cost."""

import contextlib
import struct
import time

import pytest

from gateway.errors import ImageError, ImageTooLarge
from gateway.ingest.image_formats import ImageFormat
from gateway.ingest.inspection import check_size, inspect
from tests.gateway.decoder.hostile_headers import (
    avif_of_another_size,
    avif_of_many_items,
    heic_of_another_size,
    heic_of_headers,
    jpeg2000_of_channels,
    tiff_of_two_sizes,
)
from tests.gateway.ingest.reading import LIMITS
from tests.samples import encode, photograph, sample

LARGE_PAGE = b"\xff\x7f" + struct.pack("<HHII", 270, 1, 1, 0) * 0x7FFF
HOSTILE = {
    "GIF of zeros": lambda: b"GIF89a\x09\0\x09\0" + bytes(8_000_000),
    "TIFF of a page that follows itself": lambda: b"II*\0\x08\0\0\0" + bytes(2) + b"\x08\0\0\0",
    "TIFF of many fields": lambda: b"II*\0\x08\0\0\0\xff\xff" + struct.pack("<HHII", 270, 1, 1, 0) * 0xFFFF + bytes(4),
    "TIFF of long fields": lambda: (
        b"II*\0\x08\0\0\0\2\0"
        + struct.pack("<HHIIHHII", 273, 4, 1_900_000, 64, 279, 4, 1_900_000, 64)
        + bytes(8_000_000)
    ),
    "AVIF of empty boxes": lambda: b"\0\0\0\x18ftypavif\0\0\0\0avifmif1" + b"\0\0\0\x08free" * 1_000_000,
    "AVIF of many locations": lambda: (
        b"\0\0\0\x18ftypavif\0\0\0\0avifmif1"
        + struct.pack(">I4sI", 8_000_100, b"meta", 0)
        + struct.pack(">I4sIHH", 16, b"pitm", 0, 1, 0)
        + struct.pack(">I4s", 8, b"iprp")
        + struct.pack(">I4sIHH", 8_000_068, b"iloc", 0, 0, 0xFFFF)
        + bytes(8_000_052)
    ),
    "TIFF of a large page that follows itself": lambda: b"II*\0\x08\0\0\0" + LARGE_PAGE + struct.pack("<I", 8),
    "TIFF of two sizes": lambda: tiff_of_two_sizes(12_000, 64),
    "AVIF of many items": lambda: avif_of_many_items(60_000),
    "HEIC of many headers": lambda: heic_of_headers(3_000, 3_000),
    "HEIC of another size": lambda: heic_of_another_size(2_048, 64),
    "JPEG 2000 of many channels": lambda: jpeg2000_of_channels(8_000_000),
}


async def decoded(pool, data, account):
    image_format = inspect(data, LIMITS)
    assert isinstance(image_format, ImageFormat)
    info = await pool.read_header(data, image_format, account)
    check_size(info, LIMITS)
    return (await pool.decode(data, info, 256, account)).pixels


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_file_costs_the_serving_process_nothing(pool, name):
    account = pool.account()
    data = HOSTILE[name]()
    before = time.thread_time()
    with pytest.raises(ImageError):
        await decoded(pool, data, account)
    # The rest is 8 MB to copy, and a new process in place of one that ended.
    assert time.thread_time() - before < 0.1
    # No more than one budget of time, what ended the process, and the start of another one.
    assert account.spent_seconds < 3
    assert (await decoded(pool, sample("TIFF RGB 8 bit raw").data, pool.account())).startswith(b"P6")


async def test_avif_with_an_understated_size_stays_within_its_budget(pool):
    account = pool.account()
    with contextlib.suppress(ImageError):
        pixels = await decoded(pool, avif_of_another_size(4_096, 64), account)
        assert len(pixels) == len(b"P6\n64 64\n255\n") + 64 * 64 * 3
    assert account.spent_seconds < 3


async def test_oversized_file_is_refused_by_its_header(pool):
    """It costs a slot and the header's time, and no pixel is decoded."""
    data = encode(photograph().resize((64, 64)), "TIFF")
    for tag, side in ((256, 9_000), (257, 6_000)):
        data = data.replace(struct.pack("<HHII", tag, 4, 1, 64), struct.pack("<HHII", tag, 4, 1, side))
    account = pool.account()
    with pytest.raises(ImageTooLarge, match="54,000,000 pixels"):
        await decoded(pool, data, account)
    assert account.spent_seconds < 0.1
