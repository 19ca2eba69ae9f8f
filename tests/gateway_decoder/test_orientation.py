"""Orientation metadata of every kind is applied, in the gateway and in the preprocessor, as by Pillow."""

import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from gateway.ingest.upload import Upload
from gateway_decoder.in_process import prepare
from gateway_decoder.opencv import cv2
from tests.encoders import png_chunk
from tests.gateway.ingest.reading import ALWAYS, AUTO
from tests.samples import by_pillow, encode, exif, photograph


def xmp(orientation: int) -> bytes:
    return b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="%d"/></x:xmpmeta>' % orientation


def cat() -> Image.Image:
    return photograph().resize((60, 40))


def tiff_of(orientation: int) -> bytes:
    return exif(orientation).removeprefix(b"Exif\0\0")


def webp(*chunks: tuple[bytes, bytes]) -> bytes:
    """An extended WebP of one lossy image with metadata behind it."""
    body = encode(cat(), "WEBP")[12:]
    flags = sum({b"EXIF": 8, b"XMP ": 4}[kind] for kind, _ in chunks)
    head = b"VP8X" + struct.pack("<II", 10, flags) + (59).to_bytes(3, "little") + (39).to_bytes(3, "little")
    for kind, data in chunks:
        body += kind + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)
    return b"RIFF" + struct.pack("<I", 4 + len(head) + len(body)) + b"WEBP" + head + body


def png_with_text(key: str, text: str, *, compressed: bool) -> bytes:
    info = PngInfo()
    info.add_text(key, text, zip=compressed)
    return encode(cat(), "PNG", pnginfo=info)


def raw_profile(orientation: int) -> str:
    data = b"Exif\0\0" + tiff_of(orientation)
    digits = data.hex()
    return f"\nexif\n{len(data):8}\n" + "\n".join(digits[at : at + 72] for at in range(0, len(digits), 72)) + "\n"


def png_with_xmp(orientation: int, *, compressed: bool) -> bytes:
    info = PngInfo()
    info.add_itxt("XML:com.adobe.xmp", xmp(orientation).decode(), zip=compressed)
    return encode(cat(), "PNG", pnginfo=info)


def png_with_late_exif(orientation: int) -> bytes:
    data = encode(cat(), "PNG")
    return data[:-12] + png_chunk(b"eXIf", tiff_of(orientation)) + data[-12:]


PLACES = {
    "JPEG, EXIF": lambda turn: encode(cat(), "JPEG", exif=exif(turn)),
    "JPEG, XMP": lambda turn: encode(cat(), "JPEG", xmp=xmp(turn)),
    "JPEG, EXIF before XMP": lambda turn: encode(cat(), "JPEG", exif=exif(turn), xmp=xmp(9 - turn)),
    "PNG, EXIF": lambda turn: encode(cat(), "PNG", exif=exif(turn)),
    "PNG, EXIF behind the pixels": png_with_late_exif,
    "PNG, XMP": lambda turn: png_with_xmp(turn, compressed=False),
    "PNG, compressed XMP": lambda turn: png_with_xmp(turn, compressed=True),
    "PNG, raw profile": lambda turn: png_with_text("Raw profile type exif", raw_profile(turn), compressed=False),
    "PNG, compressed raw profile": lambda turn: png_with_text(
        "Raw profile type exif", raw_profile(turn), compressed=True
    ),
    "WebP, EXIF": lambda turn: webp((b"EXIF", tiff_of(turn))),
    "WebP, EXIF with JPEG's mark": lambda turn: webp((b"EXIF", b"Exif\0\0" + tiff_of(turn))),
    "WebP, XMP": lambda turn: webp((b"XMP ", xmp(turn))),
    "WebP, EXIF before XMP": lambda turn: webp((b"EXIF", tiff_of(turn)), (b"XMP ", xmp(9 - turn))),
    "TIFF, tag": lambda turn: encode(cat(), "TIFF", tiffinfo={274: turn}),
    "AVIF, turned and mirrored": lambda turn: encode(cat(), "AVIF", exif=exif(turn)),
    "AVIF, XMP": lambda turn: encode(cat(), "AVIF", xmp=xmp(turn)),
    "AVIF, turned and mirrored before XMP": lambda turn: encode(cat(), "AVIF", exif=exif(turn), xmp=xmp(9 - turn)),
}


@pytest.mark.parametrize("policy", [AUTO, ALWAYS], ids=["auto", "always"])
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("place", PLACES)
def test_every_kind_of_orientation_metadata_is_applied(place, orientation, policy):
    data = PLACES[place](orientation)
    image = prepare(Upload(0, "cat", data), policy)
    seen = cv2.imdecode(np.frombuffer(image.payload, np.uint8), cv2.IMREAD_COLOR_RGB)
    reference = by_pillow(data)
    assert (image.height, image.width) == seen.shape[:2] == reference.shape[:2]
    assert np.abs(seen.astype(int) - reference).mean() < 1


def test_compressed_text_is_inflated_up_to_a_limit():
    packed = zlib.compress(b" " * 2**24 + xmp(6))
    data = encode(cat(), "PNG")
    chunk = png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + packed)
    assert prepare(Upload(0, "cat", data[:33] + chunk + data[33:]), ALWAYS).width == 60
