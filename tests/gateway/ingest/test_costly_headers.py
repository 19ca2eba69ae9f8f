"""Files that would cost a decoder more than they say: refused, or sent on without what makes them so.

At the limit and one past it; what a header costs to read is counted in steps, not timed.
"""

import struct
import tracemalloc
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.attack.files import heic_of_another_size, heic_of_headers, jpeg2000_of_channels
from gateway.errors import ImageError, InvalidImage, TooCostly
from gateway.ingest.decoders.budget import decoded_bytes, memory_limit
from gateway.ingest.formats.bits import Bits
from gateway.ingest.formats.jpeg import MOST_SCANNED_PIXELS, MOST_SCANS
from gateway.ingest.formats.step_limit import MOST_STEPS, Steps
from gateway.ingest.in_process import prepare
from gateway.ingest.inspection import inspect
from gateway.ingest.prepare import DecodePolicy, needs_decoding
from gateway.ingest.upload import Upload
from gateway.settings import DecodeMode
from tests.encoders import png_chunk
from tests.gateway.ingest.reading import LIMITS
from tests.gateway.ingest.test_inspection import HOSTILE
from tests.samples import encode, photograph, sample

AUTO = DecodePolicy(DecodeMode.AUTO, above_pixels=4_000_000, max_side=1_024, limits=LIMITS)
EMPTY_SCAN = b"\xff\xda" + struct.pack(">HBBBBBB", 8, 1, 1, 0, 1, 63, 0x21) + b"\x2a\xaa"
"""A refinement of what is not there: 12 bytes, and a pass over the whole picture."""


def read(data: bytes):
    return inspect(data, LIMITS)


def passes(data: bytes) -> bool:
    return not needs_decoding(read(data), AUTO)


def progressive(side: int = 64, scans: int = 0, between: bytes = b"", behind: bytes = b"") -> bytes:
    """A progressive JPEG of so many scans in all."""
    data = encode(photograph().resize((side, side)), "JPEG", progressive=True)
    more = max(scans - data.count(b"\xff\xda"), 0)
    return data.removesuffix(b"\xff\xd9") + between + EMPTY_SCAN * more + b"\xff\xd9" + behind


def test_a_jpeg_may_have_as_many_scans_as_its_pixels_allow_and_no_more():
    allowed = MOST_SCANNED_PIXELS // 2_000**2
    assert read(progressive(2_000, allowed)).width == 2_000
    with pytest.raises(TooCostly, match="scans"):
        read(progressive(2_000, allowed + 1))


def test_a_small_jpeg_has_a_limit_of_scans_as_well():
    assert read(progressive(64, MOST_SCANS)).width == 64
    with pytest.raises(TooCostly):
        read(progressive(64, MOST_SCANS + 1))


def test_an_end_in_a_comment_hides_no_scans():
    comment = b"\xff\xfe\x00\x04\xff\xd9"
    with pytest.raises(TooCostly):
        read(progressive(64, MOST_SCANS + 1, between=comment))


def test_what_looks_like_scans_behind_the_picture_is_none():
    assert read(progressive(64, 20, behind=EMPTY_SCAN * 2_000)).width == 64


def test_scans_of_one_component_each_are_counted_without_progression_too():
    data = bytearray(encode(photograph().resize((64, 64)), "JPEG"))
    place = data.index(b"\xff\xda")
    data[place : place + 14] = b"\xff\xda" + struct.pack(">HBBBBBB", 8, 1, 1, 0, 0, 63, 0)
    data[-2:] = EMPTY_SCAN * MOST_SCANS + b"\xff\xd9"
    with pytest.raises(TooCostly):
        read(bytes(data))


@pytest.mark.parametrize(("subsampling", "components"), [(0, 3), (2, 1.5)])
def test_a_progressive_jpegs_coefficients_count_as_memory(subsampling, components):
    data = encode(photograph().resize((1_600, 1_600)), "JPEG", progressive=True, subsampling=subsampling)
    info = read(data)
    coefficients = 1_600 * 1_600 * 2 * components
    assert info.coefficient_bytes == coefficients
    assert decoded_bytes(info, 100) == 200 * 200 * 3 + coefficients
    assert memory_limit(info, len(data)) > coefficients


def test_a_baseline_jpeg_keeps_no_coefficients():
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


def test_texts_and_profiles_of_a_png_do_not_travel():
    plain = encode(photograph(), "PNG")
    payload = prepare(Upload(0, "a.png", plain[:33] + text_chunks(50) + plain[33:]), AUTO).payload
    assert payload == prepare(Upload(0, "a.png", plain), AUTO).payload


def test_of_a_text_that_has_no_end_the_beginning_is_read():
    plain = encode(photograph(), "PNG")
    exif = b"II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0\0\0\0\0"
    profile = b"Raw profile type exif\0\nexif\n      32\n" + exif.hex().encode() + b"\n"
    for text, orientation in ((profile, 6), (profile + b"00\n" * 6_000_000, 6)):
        data = plain[:33] + png_chunk(b"tEXt", text) + plain[33:]
        tracemalloc.start()
        try:
            assert read(data).orientation == orientation
            assert tracemalloc.get_traced_memory()[1] < 10_000_000
        finally:
            tracemalloc.stop()


def test_of_metadata_that_lies_in_many_pieces_the_first_are_read():
    data = avif_of_metadata(19_000_000)
    tracemalloc.start()
    try:
        assert read(data).width == 64
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def avif_of_metadata(nbytes: int) -> bytes:
    """An AVIF whose XMP is eight times the same bytes, which have no orientation."""

    def box(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I4s", len(content) + 8, kind) + content

    def item(number: int, kind: bytes) -> bytes:
        return box(b"infe", struct.pack(">IHH4s", 2 << 24, number, 0, kind) + b"\0application/rdf+xml\0")

    picture = encode(photograph().resize((64, 64)), "AVIF")
    av1 = picture[picture.index(b"mdat") + 4 :]
    ipco = box(b"ipco", box(b"av1C", b"\x81\0\0\0") + box(b"ispe", struct.pack(">III", 0, 64, 64)))
    ipma = box(b"ipma", struct.pack(">II", 0, 1) + struct.pack(">HBBB", 1, 2, 1, 2))
    iinf = box(b"iinf", struct.pack(">IH", 0, 2) + item(1, b"av01") + item(2, b"mime"))
    ftyp = box(b"ftyp", b"avif\0\0\0\0mif1avif")

    def meta(offset: int) -> bytes:
        pieces = struct.pack(">HHHH", 2, 0, 0, 8) + struct.pack(">II", offset, nbytes) * 8
        iloc = struct.pack(">IHH", 1 << 24, 0x4400, 2) + struct.pack(">HHHHII", 1, 1, 0, 1, 0, len(av1)) + pieces
        boxes = box(b"pitm", struct.pack(">IH", 0, 1)) + box(b"iloc", iloc) + iinf + box(b"iprp", ipco + ipma)
        return box(b"meta", bytes(4) + boxes + box(b"idat", av1))

    return ftyp + meta(len(ftyp) + len(meta(0)) + 8) + box(b"free", bytes(nbytes))


def test_what_every_camera_program_writes_travels_untouched():
    data = encode(photograph(), "PNG", dpi=(72, 72))
    assert b"pHYs" in data
    assert prepare(Upload(0, "a.png", data), AUTO).payload is data


SECOND_ENTRY = struct.pack("<HHII", 256, 4, 1, 64)


@pytest.mark.parametrize("kind", [6, 8, 9, 13, 17, 18])
def test_a_tiff_whose_first_width_is_of_an_odd_type_is_refused(kind):
    size = struct.pack("<Hi", kind, 1) + struct.pack("<i", 9_000)
    ifd = struct.pack("<H", 3) + struct.pack("<H", 256) + size + SECOND_ENTRY + struct.pack("<HHII", 257, 4, 1, 64)
    with pytest.raises(InvalidImage, match="type"):
        read(b"II*\0\x08\0\0\0" + ifd + bytes(4))


def test_of_two_entries_of_a_tiff_the_first_one_counts():
    data = sample("TIFF RGB 8 bit raw").data
    (start,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, start)
    entries = data[start + 2 : start + 2 + 12 * count]
    width = next(entries[at : at + 12] for at in range(0, len(entries), 12) if entries[at : at + 2] == b"\0\1")
    doubled = struct.pack("<H", count + 1) + width + struct.pack("<HHII", 256, 4, 1, 9_000)
    rest = entries.replace(width, b"", 1)
    moved = data[:4] + struct.pack("<I", len(data)) + data[8:] + doubled + rest + bytes(4)
    assert read(moved).width == 451


def test_a_header_may_take_as_many_steps_as_are_allowed_and_no_more():
    steps = Steps("HEIC")
    steps.take(MOST_STEPS)
    with pytest.raises(InvalidImage, match="too many parts"):
        steps.take()


def steps_of(data: bytes, monkeypatch: pytest.MonkeyPatch) -> int:
    taken = 0
    take = Steps.take

    def count(self, number: int = 1) -> None:
        nonlocal taken
        take(self, number)
        taken += number

    monkeypatch.setattr(Steps, "take", count)
    with pytest.raises(ImageError):
        read(data)
    return taken


def costly() -> Iterator[tuple[str, bytes]]:
    yield from HOSTILE.items()
    ifd = b"\xff\x7f" + struct.pack("<HHII", 270, 1, 1, 0) * 0x7FFF
    yield "TIFF of a large page that follows itself", b"II*\0\x08\0\0\0" + ifd + struct.pack("<I", 8)
    yield (
        "TIFF of large pages",
        b"II*\0\x08\0\0\0"
        + b"".join(ifd + struct.pack("<I", 8 + (len(ifd) + 4) * (number + 1)) for number in range(20)),
    )
    iloc = struct.pack(">IHI", 2 << 24, 0, 0xFFFFFFFF) + struct.pack(">IHHH", 1, 0, 0, 0) * 2_000_000
    boxes = struct.pack(">I4sIH", 14, b"pitm", 0, 1) + struct.pack(">I4s", 8, b"iprp")
    boxes += struct.pack(">I4s", 8 + len(iloc), b"iloc") + iloc
    meta = struct.pack(">I4sI", 12 + len(boxes), b"meta", 0) + boxes
    yield "AVIF of items without extents", b"\0\0\0\x18ftypavif\0\0\0\0avifmif1" + meta
    ipma = struct.pack(">III", 0, 0xFFFFFFFF, 0) + struct.pack(">HB", 1, 0) * 2_000_000
    iprp = struct.pack(">I4s", 16 + len(ipma), b"iprp") + struct.pack(">I4s", 8 + len(ipma), b"ipma") + ipma
    iloc = struct.pack(">I4sIHH", 16, b"iloc", 0, 0, 0)
    boxes = struct.pack(">I4sIH", 14, b"pitm", 0, 1) + iloc + iprp
    meta = struct.pack(">I4sI", 12 + len(boxes), b"meta", 0) + boxes
    yield "AVIF of items without properties", b"\0\0\0\x18ftypavif\0\0\0\0avifmif1" + meta
    yield "HEIC of many headers", heic_of_headers(3_000, 3_000)
    yield "JPEG 2000 of many channels", jpeg2000_of_channels(19_000_000)
    yield "JPEG of comments between scans", progressive(64, MOST_SCANS + 1, between=b"\xff\xfe\0\2" * 4_000_000)


@pytest.mark.parametrize(("name", "data"), [pytest.param(name, data, id=name) for name, data in costly()])
def test_no_header_takes_more_steps_than_are_allowed(name, data, monkeypatch):
    values = 200_000 if name.startswith("TIFF") else 0
    assert steps_of(data, monkeypatch) <= MOST_STEPS + values + 0xFFFF


def test_an_avif_whose_picture_is_larger_than_it_says_is_refused():
    data = encode(photograph(), "AVIF", quality=50, speed=9)
    size = struct.pack(">II", 451, 300)
    assert data.count(size) == 1
    with pytest.raises(InvalidImage, match="disagree"):
        read(data.replace(size, struct.pack(">II", 64, 64)))


def test_a_header_that_pictures_share_is_read_once(monkeypatch):
    assert steps_of(heic_of_headers(5_000, 1), monkeypatch) < 17_000


def test_an_avif_of_many_pictures_is_refused_by_what_their_headers_cost(monkeypatch):
    data = encode(photograph().resize((64, 64)), "AVIF")
    av1 = data[data.index(b"mdat") + 4 :]

    def box(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I4s", len(content) + 8, kind) + content

    items = range(1, 2_001)
    ipco = box(b"ipco", box(b"av1C", b"\x81\0\0\0") + box(b"ispe", struct.pack(">III", 0, 64, 64)))
    ipma = box(b"ipma", struct.pack(">II", 0, 2_000) + b"".join(struct.pack(">HBBB", item, 2, 1, 2) for item in items))
    places = b"".join(struct.pack(">HHHHII", item, 1, 0, 1, 0, len(av1)) for item in items)
    iloc = box(b"iloc", struct.pack(">IHH", 1 << 24, 0x4400, 2_000) + places)
    boxes = box(b"pitm", struct.pack(">IH", 0, 1)) + iloc + box(b"iprp", ipco + ipma) + box(b"idat", av1)
    with pytest.raises(InvalidImage, match="too many parts"):
        read(box(b"ftyp", b"avif\0\0\0\0mif1avif") + box(b"meta", bytes(4) + boxes))


@given(st.binary(max_size=300), st.lists(st.integers(0, 40), max_size=20))
def test_numbers_of_variable_length_are_read_as_if_bit_by_bit(data, jumps):
    quick, slow = Bits(data), Bits(data)
    for jump in jumps:
        assert quick.read(jump) == slow.read(jump)
        zeros = 0
        while slow._left > 0 and not slow.read(1):
            zeros += 1
        assert quick.exp_golomb() == ((1 << zeros) - 1 + slow.read(zeros) if zeros < 32 else 2**32 - 1)
        assert quick._left == slow._left or max(quick._left, slow._left) <= 0


def test_a_heic_whose_picture_is_larger_than_it_says_is_refused():
    data = heic_of_another_size(2_048, 64)
    assert struct.pack(">II", 2_048, 2_048) not in data
    with pytest.raises(InvalidImage, match="more pixels than the picture"):
        read(data)


def heic_grid(tiles: int, columns: int, side: int = 128, items: int = 1) -> bytes:
    """A HEIC whose picture is a grid that names its `items` tiles of 64 × 64 pixels again and again."""
    tile = encode(photograph().resize((64, 64)), "HEIF", quality=50)
    at = tile.index(b"hvcC") - 4
    hvcc = tile[at : at + int.from_bytes(tile[at : at + 4], "big")]

    def box(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I4s", len(data) + 8, kind) + data

    def size(side: int) -> bytes:
        return box(b"ispe", struct.pack(">III", 0, side, side))

    def item(number: int, kind: bytes) -> bytes:
        return box(b"infe", struct.pack(">IHH4sx", 2 << 24, number, 0, kind))

    grid = struct.pack(">BBBBHH", 0, 0, tiles // columns - 1, columns - 1, side, side)
    ipco = box(b"ipco", hvcc + size(64) + size(side))
    of_tiles, count = [1, *range(3, items + 2)], items + 1
    ipma = box(b"ipma", struct.pack(">IIHBB", 0, count, 2, 1, 3)
               + b"".join(struct.pack(">HBBB", item, 2, 1, 2) for item in of_tiles))  # fmt: skip
    used = b"".join(struct.pack(">H", of_tiles[number % items]) for number in range(tiles))
    iref = box(b"iref", bytes(4) + box(b"dimg", struct.pack(">HH", 2, tiles) + used))
    places = b"".join(struct.pack(">HHHHII", item, 1, 0, 1, 0, len(grid)) for item in (2, *of_tiles))
    iloc = box(b"iloc", struct.pack(">IHH", 1 << 24, 0x4400, count) + places)
    kinds = item(2, b"grid") + b"".join(item(tile, b"hvc1") for tile in of_tiles)
    parts = [
        box(b"hdlr", bytes(8) + b"pict" + bytes(13)), box(b"pitm", struct.pack(">IH", 0, 2)),
        box(b"iinf", struct.pack(">IH", 0, count) + kinds),
        box(b"iprp", ipco + ipma), iref, box(b"idat", grid), iloc,
    ]  # fmt: skip
    return box(b"ftyp", b"heic\0\0\0\0mif1heic") + box(b"meta", bytes(4) + b"".join(parts))


def test_a_grid_counts_a_tile_as_often_as_it_is_used():
    assert (read(heic_grid(4, 2)).width, read(heic_grid(4, 2)).height) == (128, 128)
    with pytest.raises(InvalidImage, match="more pixels than the picture"):
        read(heic_grid(10_000, 100))


def test_a_grid_of_as_many_tiles_as_the_largest_photographs_have_is_read():
    """100 megapixels in tiles of 512 × 512 pixels are 400; ten times as many are too many parts."""
    assert read(heic_grid(400, 20, side=20 * 64, items=400)).width == 1_280
    with pytest.raises(InvalidImage, match="too many parts"):
        read(heic_grid(4_000, 50, side=50 * 64, items=4_000))


def test_a_grid_of_another_size_than_it_says_is_refused():
    data = heic_grid(4, 2)
    with pytest.raises(InvalidImage, match="disagree"):
        read(data.replace(struct.pack(">III", 0, 128, 128), struct.pack(">III", 0, 64, 64)))


def test_a_jpeg_2000_of_too_many_tiles_is_refused():
    data = encode(photograph(), "JPEG2000", no_jp2=True)
    assert struct.unpack_from(">II", data, 24) == (451, 300)
    with pytest.raises(InvalidImage, match="tiles"):
        read(data[:24] + struct.pack(">II", 1, 1) + data[32:])


def test_a_webp_whose_picture_is_larger_than_it_says_is_refused():
    data = encode(photograph(), "WEBP", exif=b"II*\0\x08\0\0\0" + bytes(6))
    assert data[12:16] == b"VP8X"
    with pytest.raises(InvalidImage, match="disagree"):
        read(data[:24] + (63).to_bytes(3, "little") * 2 + data[30:])


@pytest.mark.parametrize("name", ["WebP lossless", "WebP animated", "BMP run lengths 8 bit"])
def test_what_may_cost_more_than_its_pixels_is_decoded_in_the_gateway(name):
    assert not passes(sample(name).data)


def test_a_jpeg_of_arithmetic_coding_is_decoded_in_the_gateway():
    data = bytearray(sample("JPEG baseline").data)
    place = data.index(b"\xff\xc0")
    data[place + 1] = 0xC9
    assert passes(sample("JPEG baseline").data)
    assert not passes(bytes(data))


def test_a_bomb_of_an_avif_ends_in_the_memory_that_a_small_picture_may_take():
    small = encode(photograph().resize((64, 64)), "AVIF")
    info = read(small)
    assert memory_limit(info, len(small)) < 100 * 2**20
    assert np.isclose(memory_limit(info, len(small)), 96 * 2**20, rtol=0.01)
