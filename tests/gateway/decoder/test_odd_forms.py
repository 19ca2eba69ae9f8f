"""Forms that OpenCV cannot open or decodes wrong, and orientation metadata of every kind: as Pillow shows them.

In the gateway, which decodes an image, and in the preprocessor, to which it passes one on.
"""

import struct
import zlib
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
import tifffile
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from gateway.decoder.in_process import prepare
from gateway.decoder.opencv import cv2
from gateway.errors import UndecodableImage, UnsupportedFormat
from tests.encoders import png_chunk
from tests.gateway.decoder.test_decoding import difference
from tests.gateway.ingest.reading import ALWAYS, AUTO
from tests.samples import by_pillow, encode, exif, photograph

EITHER_POLICY = pytest.mark.parametrize("policy", [AUTO, ALWAYS], ids=["auto", "always"])


def cat() -> Image.Image:
    return photograph().resize((61, 40))


def gif():
    return encode(cat().convert("L"), "GIF")


def bmp_with_offset(offset):
    data = encode(cat(), "BMP")
    return data[:10] + struct.pack("<I", offset) + data[14:]


def png_in_pieces(nbytes):
    """A PNG whose compressed pixels are spread over many small IDAT chunks."""
    data = encode(photograph(), "PNG")
    position, pixels = 8, b""
    while position < len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        if kind == b"IDAT":
            pixels += data[position + 8 : position + 8 + length]
        position += 12 + length
    pieces = (pixels[start : start + nbytes] for start in range(0, len(pixels), nbytes))
    return data[:33] + b"".join(png_chunk(b"IDAT", piece) for piece in pieces) + png_chunk(b"IEND", b"")


def long_strip_tiff():
    data = encode(cat(), "TIFF")
    (length,) = struct.unpack("<I", data[data.index(struct.pack("<HHI", 279, 4, 1)) + 8 :][:4])
    return data.replace(struct.pack("<I", length), struct.pack("<I", length + 5_000))


FORMS = {
    "GIF that reaches beyond its screen": lambda: gif()[:6] + struct.pack("<HH", 30, 50) + gif()[10:],
    "GIF without a trailer": lambda: gif()[:-1],
    "GIF with a line break behind it": lambda: gif() + b"\r\n",
    "TIFF whose strip is announced too long": long_strip_tiff,
    "BMP whose last row is not padded": lambda: encode(cat(), "BMP")[:-1],
    "BMP whose offset of the pixels is 0": lambda: bmp_with_offset(0),
    "PNG in pieces of 256 bytes": lambda: png_in_pieces(256),
}


def seen(image):
    """The pixels that the preprocessor decodes from a prepared image."""
    return cv2.imdecode(np.frombuffer(image.payload, np.uint8), cv2.IMREAD_COLOR_RGB)


@EITHER_POLICY
@pytest.mark.parametrize("name", FORMS)
def test_odd_form_has_the_pixels_of_pillow(name, policy):
    data = FORMS[name]()
    assert difference(seen(prepare(data, policy)), by_pillow(data)) == 0


def test_offset_in_the_header_of_a_bitmap_is_ignored():
    """As in browsers; Pillow reads pixels out of the header."""
    prepared = prepare(bmp_with_offset(40), AUTO)
    assert difference(seen(prepared), by_pillow(encode(cat(), "BMP"))) == 0


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"photometric": "rgb", "planarconfig": "separate"}, "planes of 16 bits"),
        ({"photometric": "minisblack", "planarconfig": "separate", "compression": "zlib"}, "alpha of gray in a plane"),
        ({"photometric": "miniswhite"}, "white as 0"),
        ({"photometric": "minisblack", "extrasamples": ["unassalpha"]}, "samples of a kind that is not supported"),
    ],
    ids=["RGB in planes", "gray and alpha in planes", "white is 0", "gray and alpha of 16 bits"],
)
def test_tiff_that_pillow_shows_wrong_is_refused(tmp_path, form, reason):
    gray = np.asarray(cat().convert("L"))
    if form["photometric"] == "rgb":
        values = np.moveaxis(np.asarray(cat()), -1, 0).astype(np.uint16) * 257
    elif "compression" in form:
        values, form = np.stack([gray, gray]), {**form, "extrasamples": ["unassalpha"]}
    else:
        values = (np.dstack([gray, gray]) if "extrasamples" in form else gray).astype(np.uint16) * 257
    tifffile.imwrite(tmp_path / "a.tif", np.ascontiguousarray(values), metadata=None, **form)
    with pytest.raises(UnsupportedFormat, match=reason):
        prepare((tmp_path / "a.tif").read_bytes(), AUTO)


def xmp(orientation: int) -> bytes:
    return b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="%d"/></x:xmpmeta>' % orientation


def tiff_of(orientation: int) -> bytes:
    return exif(orientation).removeprefix(b"Exif\0\0")


def webp(*chunks: tuple[bytes, bytes], announced: bool = True) -> bytes:
    """An extended WebP of one lossy image with metadata behind it, which its header announces or not."""
    body = encode(cat(), "WEBP")[12:]
    flags = sum({b"EXIF": 8, b"XMP ": 4}[kind] for kind, _ in chunks) if announced else 0
    head = b"VP8X" + struct.pack("<II", 10, flags) + (60).to_bytes(3, "little") + (39).to_bytes(3, "little")
    for kind, data in chunks:
        body += kind + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)
    return b"RIFF" + struct.pack("<I", 4 + len(head) + len(body)) + b"WEBP" + head + body


def png_with(add: Callable[..., None], key: str, text: str, **options: bool) -> bytes:
    """A PNG with a chunk of text, which a method of PngInfo adds."""
    info = PngInfo()
    add(info, key, text, **options)
    return encode(cat(), "PNG", pnginfo=info)


def raw_profile(orientation: int) -> str:
    data = b"Exif\0\0" + tiff_of(orientation)
    digits = data.hex()
    return f"\nexif\n{len(data):8}\n" + "\n".join(digits[at : at + 72] for at in range(0, len(digits), 72)) + "\n"


def png_with_late_exif(orientation: int) -> bytes:
    data = encode(cat(), "PNG")
    return data[:-12] + png_chunk(b"eXIf", tiff_of(orientation)) + data[-12:]


PLACES = {
    "JPEG, EXIF": lambda turn: encode(cat(), "JPEG", exif=exif(turn)),
    "JPEG, XMP": lambda turn: encode(cat(), "JPEG", xmp=xmp(turn)),
    "JPEG, EXIF before XMP": lambda turn: encode(cat(), "JPEG", exif=exif(turn), xmp=xmp(9 - turn)),
    "PNG, EXIF": lambda turn: encode(cat(), "PNG", exif=exif(turn)),
    "PNG, EXIF behind the pixels": png_with_late_exif,
    "PNG, XMP": lambda turn: png_with(PngInfo.add_itxt, "XML:com.adobe.xmp", xmp(turn).decode()),
    "PNG, compressed XMP": lambda turn: png_with(PngInfo.add_itxt, "XML:com.adobe.xmp", xmp(turn).decode(), zip=True),
    "PNG, raw profile": lambda turn: png_with(PngInfo.add_text, "Raw profile type exif", raw_profile(turn)),
    "PNG, compressed raw profile": lambda turn: png_with(
        PngInfo.add_text, "Raw profile type exif", raw_profile(turn), zip=True
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


@EITHER_POLICY
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("place", PLACES)
def test_every_kind_of_orientation_metadata_is_applied(place, orientation, policy):
    data = PLACES[place](orientation)
    image = prepare(data, policy)
    reference = by_pillow(data)
    assert (image.height, image.width) == reference.shape[:2]
    assert difference(seen(image), reference) < 1


@EITHER_POLICY
@pytest.mark.parametrize("chunk", [(b"EXIF", tiff_of(6)), (b"XMP ", xmp(6))], ids=["EXIF", "XMP"])
def test_metadata_that_the_header_of_a_webp_does_not_announce_is_ignored(chunk, policy):
    data = webp(chunk, announced=False)
    assert difference(seen(prepare(data, policy)), by_pillow(data)) < 1


@EITHER_POLICY
@pytest.mark.parametrize(
    "data",
    [
        *(encode(cat(), each, exif=b"Exif\0\0no metadata") for each in ("JPEG", "PNG", "WEBP")),
        png_with(PngInfo.add_text, "Raw profile type exif", raw_profile(6).replace("4", "no hexadecimal digit")),
    ],
    ids=["JPEG", "PNG", "WebP", "PNG, raw profile"],
)
def test_damaged_metadata_is_ignored_as_in_browsers(data, policy):
    image = prepare(data, policy)
    assert (image.height, image.width) == (cat().height, cat().width)


def test_compressed_text_is_inflated_up_to_a_limit():
    data = encode(cat(), "PNG")
    for nbytes in (2**24, 2**26):
        chunk = png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(b" " * nbytes + xmp(6)))
        with nullcontext() if nbytes == 2**24 else pytest.raises(UndecodableImage):
            assert prepare(data[:33] + chunk + data[33:], AUTO).width == 40
