"""Forms that OpenCV cannot open or decodes wrong, and orientation metadata of every kind: as Pillow shows them.

In the gateway, which decodes an image, and in the preprocessor, to which it passes one on.
"""

import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest
import tifffile
from PIL import Image, TiffImagePlugin
from PIL.PngImagePlugin import PngInfo

from gateway.decoder.in_process import prepare
from gateway.decoder.opencv import cv2
from gateway.errors import ImageError, UnsupportedFormat
from gateway.ingest.upload import Upload
from tests.encoders import png_chunk
from tests.gateway.decoder.test_decoding import difference
from tests.gateway.ingest.reading import ALWAYS, AUTO
from tests.samples import by_pillow, encode, exif, photograph

EITHER_POLICY = pytest.mark.parametrize("policy", [AUTO, ALWAYS], ids=["auto", "always"])


def cat() -> Image.Image:
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


def rgba_tiff(folder, bits=8, *, gray=False, alpha="unassalpha", planes=False, unnamed=False, compression=None):
    """RGB or gray with alpha, which the tag ExtraSamples describes unless it is `unnamed`."""
    values = np.asarray(cat().convert("LA" if gray else "RGBA")).copy()
    values[:, :20, -1] = 0
    values = values.astype(np.uint16) * 257 if bits == 16 else values
    data = by_tifffile(
        np.ascontiguousarray(np.moveaxis(values, -1, 0)) if planes else values,
        folder,
        photometric="minisblack" if gray else "rgb",
        planarconfig="separate" if planes else "contig",
        extrasamples=[alpha],
        compression=compression,
    )
    return data.replace(struct.pack("<HHI", 338, 3, 1), struct.pack("<HHI", 337, 3, 1)) if unnamed else data


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


def run_length_bmp(first=b"", padding=0):
    """RLE8; `first` stands in place of the first row, `padding` is the length of a run behind each row's end."""
    image = cat().quantize(16)
    data = bytearray(encode(image, "BMP"))
    struct.pack_into("<I", data, 30, 1)
    (offset,) = struct.unpack_from("<I", data, 10)
    ends = bytes([padding, 0]) * bool(padding) + b"\0\0"
    rows = [b"".join(bytes([1, index]) for index in row) + ends for row in np.asarray(image)[::-1]]
    pixels = (first or rows[0]) + b"".join(rows[1:]) + b"\0\1"
    struct.pack_into("<I", data, 34, len(pixels))
    return bytes(data[:offset]) + pixels


def palette_tiff_with_alpha():
    """One strip, behind the directory, of pairs of an index and an opacity."""
    image = cat().quantize(256)
    strip = np.dstack([np.asarray(image), gray()]).tobytes()
    width, height = image.size
    colours = np.resize(np.array(image.getpalette(), np.uint16), 768).reshape(256, 3).T * 257
    tags = {256: width, 257: height, 258: (8, 8), 259: 1, 262: 3, 273: 0, 277: 2, 278: height, 279: len(strip)}
    directory = TiffImagePlugin.ImageFileDirectory_v2()
    for tag, value in (tags | {320: tuple(colours.ravel().tolist()), 338: 2}).items():
        directory[tag] = value
    return b"II*\0" + struct.pack("<I", 8) + directory.tobytes(8) + strip


FORMS = {
    "TIFF LZMA": lambda folder: encode(cat(), "TIFF", compression="lzma"),
    "TIFF Zstandard": lambda folder: encode(cat(), "TIFF", compression="zstd"),
    "TIFF gray 2 bit": lambda folder: gray_tiff(2),
    "TIFF gray 4 bit": lambda folder: gray_tiff(4),
    "TIFF gray with alpha": lambda folder: encode(cat().convert("LA"), "TIFF"),
    "TIFF palette with alpha": lambda folder: palette_tiff_with_alpha(),
    "TIFF gray with an extra sample": lambda folder: by_tifffile(
        np.dstack([gray(), gray()]), folder, photometric="minisblack", extrasamples=["unspecified"]
    ),
    "TIFF RGB with two extra samples": lambda folder: by_tifffile(
        np.dstack([np.asarray(cat()), gray(), gray()]),
        folder,
        photometric="rgb",
        extrasamples=["unspecified", "unspecified"],
    ),
    "TIFF RGB with a fourth sample": lambda folder: rgba_tiff(folder, unnamed=True),
    "TIFF RGB 16 bit with alpha in planes": lambda folder: rgba_tiff(folder, 16, planes=True, compression="zlib"),
    "TIFF CIELab": lambda folder: encode(cat().convert("LAB"), "TIFF"),
    "TIFF CMYK 16 bit": lambda folder: by_tifffile(
        np.asarray(cat().convert("CMYK")).astype(np.uint16) * 257, folder, photometric="separated"
    ),
    "GIF without a palette": lambda folder: gif(palette=False),
    "GIF with a background outside its palette": lambda folder: gif(background=255),
    "GIF that reaches beyond its screen": lambda folder: gif()[:6] + struct.pack("<HH", 30, 50) + gif()[10:],
    "GIF without a trailer": lambda folder: gif()[:-1],
    "GIF with a line break behind it": lambda folder: gif() + b"\r\n",
    "WebP of one colour, whose file has 28 bytes": lambda folder: (
        b"RIFF\x14\0\0\0WEBPVP8L\x08\0\0\0\x2f\x63\xc0\x18\x10\x88\x88\x08"
    ),
    "BMP whose offset of the pixels is 0": lambda folder: bmp_with_offset(0),
    "BMP whose last row is not padded": lambda folder: encode(cat(), "BMP")[:-1],
    "PNG in pieces of 256 bytes": lambda folder: png_in_pieces(256),
    "TIFF whose strip is announced too long": lambda folder: long_strip_tiff(),
    "BMP with runs behind the ends of rows": lambda folder: run_length_bmp(padding=2),
    "BMP with a run across the end of a row": lambda folder: run_length_bmp(first=b"\xff\1" * 8 + b"\0\0"),
    "BMP 1 bit with three planes": lambda folder: bmp(planes=3),
    "BMP 1 bit without planes": lambda folder: bmp(planes=0),
    "DIB 24 bit": lambda folder: encode(cat(), "BMP")[14:],
    "DIB 8 bit": lambda folder: encode(cat().quantize(64), "BMP")[14:],
    "DIB 1 bit": lambda folder: encode(cat().convert("1"), "BMP")[14:],
}


def seen(image):
    """The pixels that the preprocessor decodes from a prepared image."""
    return cv2.imdecode(np.frombuffer(image.payload, np.uint8), cv2.IMREAD_COLOR_RGB)


@EITHER_POLICY
@pytest.mark.parametrize("name", FORMS)
def test_odd_form_has_the_pixels_of_pillow(name, policy, tmp_path):
    data = FORMS[name](tmp_path)
    assert difference(seen(prepare(Upload(0, "odd", data), policy)), by_pillow(data)) == 0


def test_offset_in_the_header_of_a_bitmap_is_ignored():
    """As in browsers; Pillow reads pixels out of the header."""
    prepared = prepare(Upload(0, "odd", bmp_with_offset(40)), AUTO)
    assert difference(seen(prepared), by_pillow(encode(cat(), "BMP"))) == 0


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"bits": 16, "planes": True}, "alpha in a separate plane"),
        ({"planes": True, "unnamed": True, "compression": "zlib"}, "alpha in a separate plane"),
        ({"gray": True, "planes": True, "compression": "zlib"}, "A gray or palette TIFF with alpha must have 8 bits"),
        ({"gray": True, "bits": 16}, "A gray or palette TIFF with alpha must have 8 bits"),
        ({"gray": True, "alpha": "assocalpha"}, "A gray or palette TIFF with alpha must have 8 bits"),
    ],
)
def test_alpha_that_the_libraries_show_wrong_is_refused(tmp_path, form, reason):
    with pytest.raises(UnsupportedFormat, match=reason):
        prepare(Upload(0, "odd", rgba_tiff(tmp_path, **form)), AUTO)


@pytest.mark.parametrize("name", FORMS)
def test_truncated_odd_form_is_an_image_error(name, tmp_path):
    data = FORMS[name](tmp_path)
    with pytest.raises(ImageError):
        prepare(Upload(0, "odd", data[: len(data) // 2]), AUTO)


def xmp(orientation: int) -> bytes:
    return b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="%d"/></x:xmpmeta>' % orientation


def tiff_of(orientation: int) -> bytes:
    return exif(orientation).removeprefix(b"Exif\0\0")


def webp(*chunks: tuple[bytes, bytes]) -> bytes:
    """An extended WebP of one lossy image with metadata behind it."""
    body = encode(cat(), "WEBP")[12:]
    flags = sum({b"EXIF": 8, b"XMP ": 4}[kind] for kind, _ in chunks)
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
    image = prepare(Upload(0, "cat", data), policy)
    reference = by_pillow(data)
    assert (image.height, image.width) == reference.shape[:2]
    assert difference(seen(image), reference) < 1


def test_compressed_text_is_inflated_up_to_a_limit():
    packed = zlib.compress(b" " * 2**24 + xmp(6))
    data = encode(cat(), "PNG")
    chunk = png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + packed)
    assert prepare(Upload(0, "cat", data[:33] + chunk + data[33:]), ALWAYS).width == 61
