"""JPEG 2000 files that are damaged, or beyond what is served, are refused with the reason, before they are decoded."""

import struct

import pytest

from gateway.errors import ImageError, InvalidImage, TruncatedImage, UnsupportedFormat
from gateway.ingest.formats.jpeg2000 import read_jpeg2000

SIGNATURE = b"\0\0\0\x0cjP  \r\n\x87\n"
GRAY = ((7, 1, 1),)
RGB = ((7, 1, 1),) * 3


def codestream(channels=RGB, *, width=40, height=30, tile=(40, 30), said: int | None = None, end=b"\xff\xd9") -> bytes:
    """The marker segment of the size (T.800, section A.5.1), and the end."""
    count = len(channels) if said is None else said
    size = struct.pack(">H8IH", 0, width, height, 0, 0, *tile, 0, 0, count) + bytes(sum(channels, ()))
    return b"\xff\x4f\xff\x51" + struct.pack(">H", 38 + 3 * len(channels)) + size + bytes(10) + end


def box(kind: bytes, content: bytes, *, size: int | None = None, long: bool = False) -> bytes:
    """Annex I.4."""
    if long:
        return struct.pack(">I4sQ", 1, kind, 16 + len(content)) + content
    return struct.pack(">I4s", 8 + len(content) if size is None else size, kind) + content


def opacity(channel: int = 3, meaning: int = 1) -> bytes:
    """A channel definition box: of the last of four channels."""
    entries = [struct.pack(">3H", number, 0, number + 1) for number in range(3)]
    return box(b"cdef", struct.pack(">H", 4) + b"".join(entries) + struct.pack(">3H", channel, meaning, 0))


def jp2(*boxes: bytes) -> bytes:
    return SIGNATURE + box(b"ftyp", b"jp2 \0\0\0\0jp2 ") + b"".join(boxes)


@pytest.mark.parametrize(
    "data",
    [
        codestream(),
        jp2(box(b"jp2c", codestream())),
        jp2(box(b"jp2c", codestream(), long=True)),
        jp2(box(b"jp2c", codestream(), size=0)),
        jp2(box(b"uuid", bytes(100)), box(b"jp2h", b""), box(b"jp2c", codestream())),
    ],
    ids=["bare", "in a box", "in a long box", "in a box to the end", "behind others"],
)
def test_the_size_is_found_wherever_the_picture_is(data):
    info = read_jpeg2000(data)
    assert (info.width, info.height, info.bit_depth, info.has_alpha) == (40, 30, 8, False)


@pytest.mark.parametrize(("meaning", "transparent"), [(0, False), (1, True), (2, True), (65_535, False)])
def test_the_channel_definitions_say_what_is_opacity(meaning, transparent):
    header = box(b"jp2h", box(b"ihdr", bytes(14)) + opacity(2, meaning))
    assert read_jpeg2000(jp2(header, box(b"jp2c", codestream()))).has_alpha is transparent


def test_definitions_of_an_impossible_size_say_nothing():
    header = box(b"jp2h", box(b"ihdr", b"", size=4) + opacity())
    assert not read_jpeg2000(jp2(header, box(b"jp2c", codestream()))).has_alpha


@pytest.mark.parametrize("channels", [GRAY * 2, RGB + GRAY])
def test_two_and_four_channels_have_opacity(channels):
    assert read_jpeg2000(codestream(channels)).has_alpha


REFUSED = {
    "a box of an impossible size": (jp2(box(b"uuid", b"", size=4)), InvalidImage, "impossible size"),
    "a box beyond the end": (jp2(box(b"uuid", b"", size=99)), TruncatedImage, "reaches beyond its end"),
    "no picture": (jp2(), TruncatedImage, "it has no picture"),
    "a long box without its length": (jp2(struct.pack(">I4s", 1, b"jp2c")), TruncatedImage, "in its header"),
    "no size first": (jp2(box(b"jp2c", bytes(60))), InvalidImage, "does not begin with its size"),
    "a cut header": (codestream()[:40], TruncatedImage, "in its header"),
    "fewer channels than it says": (codestream(GRAY, said=60), TruncatedImage, "in its header"),
    "no width": (codestream(width=0), InvalidImage, "no width, no height"),
    "no tiles": (codestream(tile=(0, 30)), InvalidImage, "no width, no height"),
    "no channels": (codestream(GRAY, said=0), InvalidImage, "no channels"),
    "five channels": (codestream(GRAY * 5), UnsupportedFormat, "5 channels"),
    "signed samples": (codestream(((0x87, 1, 1),)), UnsupportedFormat, "signed"),
    "seventeen bits": (codestream(((16, 1, 1),)), UnsupportedFormat, "16 bits"),
    "a subsampled first channel": (codestream(((7, 2, 1),)), UnsupportedFormat, "subsampled"),
    "a tile for each pixel": (codestream(width=200, height=51, tile=(1, 1)), InvalidImage, "10200 tiles"),
    "no end": (codestream(end=b""), TruncatedImage, "the end of its picture is missing"),
}
"""What is refused, and how."""


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_decoded_is_refused_with_the_reason(name):
    data, error, reason = REFUSED[name]
    with pytest.raises(ImageError, match=reason) as refused:
        read_jpeg2000(data)
    assert type(refused.value) is error


def test_as_many_tiles_and_bits_as_are_supported_are_accepted():
    info = read_jpeg2000(codestream(((15, 1, 1),), width=100, height=100, tile=(1, 1)))
    assert (info.width, info.height, info.bit_depth) == (100, 100, 16)
