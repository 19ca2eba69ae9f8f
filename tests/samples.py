"""One photograph in every format variant that the gateway accepts, made by Pillow, OpenCV and tests/encoders.py.

Each variant decodes to the same image: variants with an EXIF orientation are stored rotated or mirrored accordingly,
and variants with transparency fade to white at one edge.
"""

import functools
import io
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import cv2
import numpy as np
import pillow_heif
import tifffile
from numpy.typing import NDArray
from PIL import Image, ImageOps

from tests import encoders, photos

pillow_heif.register_heif_opener()

GRAY, RGB, PALETTE, GRAY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6
STORED_TURNED = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
"""How a camera stores an upright image for each EXIF orientation."""

FIRST_IMAGE_MAY_BE_WHOLE = frozenset({"GIF animated", "TIFF pages", "TIFF tiles", "HEIC of several pictures"})
"""Samples with more images, or parts of tiles, behind the first image, which is answered if only those are cut off."""
QUICK_HEVC = {"enc_params": {"preset": "ultrafast"}}
"""Takes a seventh of the encoder's usual time; the pixels are as close to the original."""


@dataclass(frozen=True)
class Sample:
    """An image file and its expected pixels, `picture`, uint8 [height, width, 3].

    `far` is the allowed mean difference between its pixels and `picture`, in levels of 0 to 255: 0 if the variant is
    lossless.
    """

    format: str
    variant: str
    encode: Callable[[], bytes] = field(repr=False)
    far: float
    picture: NDArray[np.uint8] = field(repr=False)

    @property
    def name(self) -> str:
        return f"{self.format} {self.variant}"

    @functools.cached_property
    def data(self) -> bytes:
        """The file, encoded on first use: all of them take seconds."""
        return self.encode()


@functools.cache
def photograph() -> Image.Image:
    """A cat, 451 × 300, RGB; an odd width, so that rows are padded where a format pads rows."""
    return Image.fromarray(np.asarray(photos.pixels("cat")))  # without the metadata of its file


@functools.cache
def samples(width: int = 451, height: int = 300) -> tuple[Sample, ...]:
    """Every variant of the photograph at a size; the same bytes each time."""
    forms = _Forms(photograph() if (width, height) == photograph().size else photograph().resize((width, height)))
    return (
        *forms.jpeg(), *forms.png(), *forms.webp(), *forms.bmp(), *forms.gif(), *forms.tiff(), *forms.avif(),
        *forms.heic(), *forms.jpeg2000(),
    )  # fmt: skip


def sample(name: str, width: int = 451, height: int = 300) -> Sample:
    """A sample by its name, such as "JPEG progressive"."""
    return next(one for one in samples(width, height) if one.name == name)


def names(*formats: str) -> list[str]:
    """The names of all samples, or of some formats, for parametrized tests."""
    return [one.name for one in samples(2, 3) if not formats or one.format in formats]


def fading(picture: Image.Image) -> Image.Image:
    """An image in RGBA, increasingly transparent over the last eighth of its columns."""
    ramp = np.clip((picture.width - np.arange(picture.width)) * 8 / picture.width, 0, 1) * 255
    faded = picture.copy()
    faded.putalpha(Image.fromarray(np.tile(ramp.astype(np.uint8), (picture.height, 1))))
    return faded


def on_white(picture: Image.Image) -> Image.Image:
    """An image with transparency, composited on white."""
    white = Image.new("RGBA", picture.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, picture.convert("RGBA")).convert("RGB")


def by_pillow(data: bytes) -> NDArray[np.uint8]:
    """The first image of a file as decoded by Pillow: upright, on white, uint8 [height, width, 3]."""
    picture = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if picture.mode.startswith("I;16"):
        return np.repeat((np.asarray(picture) / 257).round().astype(np.uint8)[..., None], 3, axis=2)
    return np.asarray(on_white(picture) if picture.has_transparency_data else picture.convert("RGB"))


def encode(picture: Image.Image, image_format: str, **options: object) -> bytes:
    """An image file written by Pillow."""
    out = io.BytesIO()
    picture.save(out, image_format, **options)
    return out.getvalue()


def exif(orientation: int) -> bytes:
    """EXIF metadata with only an orientation."""
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags.tobytes()


def turned(picture: Image.Image, orientation: int) -> Image.Image:
    """An image as stored with an EXIF orientation."""
    method = STORED_TURNED[orientation]
    return picture if method is None else picture.transpose(method)


class _Forms:
    """The encodings of one image."""

    def __init__(self, cat: Image.Image) -> None:
        self.cat, self.gray, self.faded = cat, cat.convert("L"), fading(cat)
        self.gray_faded = self.faded.convert("LA")
        self.upside_down = turned(cat, 3)
        self.in_colours = functools.cache(cat.quantize)

    def sample(
        self,
        name: str,
        encoder: Callable[..., bytes],
        *arguments: object,
        far: float = 0,
        gray: bool = False,
        fades: bool = False,
        **options: object,
    ) -> Sample:
        """A sample whose file is the encoder's result for these arguments and options."""
        shown = (self.gray_faded if gray else self.faded) if fades else (self.gray if gray else self.cat)
        picture = on_white(shown) if fades else shown.convert("RGB")
        two_words = name.startswith("JPEG 2000 ")
        image_format, variant = ("JPEG 2000", name[10:]) if two_words else name.split(" ", maxsplit=1)
        return Sample(image_format, variant, partial(encoder, *arguments, **options), far, np.asarray(picture))

    def jpeg(self) -> Iterator[Sample]:
        def surrounded(comment: bytes = b"", tail: bytes = b"") -> bytes:
            whole = encode(cat, "JPEG", quality=95)
            segment = b"\xff\xfe" + struct.pack(">H", len(comment) + 2) + comment if comment else b""
            return whole[:2] + segment + whole[2:] + tail

        cat, gray = self.cat, self.gray
        yield self.sample("JPEG baseline", encode, cat, "JPEG", quality=95, far=2)
        yield self.sample("JPEG low quality", encode, cat, "JPEG", quality=60, far=5)
        yield self.sample("JPEG progressive", encode, cat, "JPEG", quality=95, progressive=True, far=2)
        yield self.sample("JPEG 4:4:4", encode, cat, "JPEG", quality=95, subsampling=0, far=2)
        yield self.sample("JPEG restart intervals", encode, cat, "JPEG", quality=95, restart_marker_rows=1, far=2)
        yield self.sample("JPEG gray", encode, gray, "JPEG", quality=95, far=2, gray=True)
        yield self.sample("JPEG CMYK", encode, cat.convert("CMYK"), "JPEG", quality=95, far=3)
        yield from self.orientations("JPEG", quality=95, far=2)
        thumbnail = encode(cat.resize((64, 48)), "JPEG")
        yield self.sample("JPEG with a thumbnail", surrounded, comment=thumbnail, far=2)
        video = b"\0\0\0\x18ftypmp42" + bytes(range(256)) * 40
        yield self.sample("JPEG with a video behind", surrounded, tail=video, far=2)
        yield self.sample("JPEG padded with zeros", surrounded, tail=bytes(4096), far=2)

    def orientations(
        self, name: str, form: str | None = None, *, variant: str = "orientation", far: float = 0, **options: object
    ) -> Iterator[Sample]:
        """The image as stored with each EXIF orientation."""
        for number in STORED_TURNED:
            metadata = {"tiffinfo": {274: number}} if name == "TIFF" else {"exif": exif(number)}
            stored = turned(self.cat, number)
            yield self.sample(
                f"{name} {variant} {number}", encode, stored, form or name, far=far, **metadata, **options
            )

    def png(self) -> Iterator[Sample]:
        cat = np.asarray(self.cat)
        gray = np.asarray(self.gray)[..., None]
        channels = (
            ("gray", gray, GRAY, {"gray": True}),
            ("RGB", cat, RGB, {}),
            ("RGBA", np.asarray(self.faded), RGB_ALPHA, {"far": 0.5, "fades": True}),
            ("gray with alpha", np.asarray(self.gray_faded), GRAY_ALPHA, {"far": 0.5, "fades": True, "gray": True}),
        )
        for interlaced in (False, True):
            png = partial(encoders.png, interlaced=interlaced)
            suffix = " interlaced" if interlaced else ""
            for bits, far in ((1, 110), (2, 30), (4, 10)):
                levels = gray >> (8 - bits)
                yield self.sample(f"PNG gray {bits} bit{suffix}", png, levels, GRAY, bits, far=far, gray=True)
            for name, pixels, colour, shown in channels:
                wide = pixels.astype(np.uint16) * 257
                yield self.sample(f"PNG {name} 8 bit{suffix}", png, pixels, colour, 8, **shown)
                yield self.sample(f"PNG {name} 16 bit{suffix}", png, wide, colour, 16, **shown)
        for bits, far in ((1, 60), (2, 40), (4, 20), (8, 10)):
            yield self.sample(f"PNG palette {bits} bit", self.palette_png, bits, far=far)
        few = self.faded.quantize(256)
        yield self.sample("PNG palette with alpha", encode, few, "PNG", far=10, fades=True)
        yield from self.orientations("PNG", compress_level=1)
        yield self.sample("PNG animated", encode, self.cat, "PNG", save_all=True, append_images=[self.upside_down])

    def palette_png(self, bits: int) -> bytes:
        quantized = self.in_colours(2**bits)
        palette = bytes(quantized.getpalette()).ljust(3 * 2**bits, b"\0")[: 3 * 2**bits]
        return encoders.png(np.asarray(quantized)[..., None], PALETTE, bits, chunks=((b"PLTE", palette),))

    def in_256_colours(self, form: str, **options: object) -> bytes:
        return encode(self.in_colours(256), form, **options)

    def webp(self) -> Iterator[Sample]:
        cat = self.cat
        lossless = {"lossless": True, "method": 0}
        alpha = {**lossless, "exact": True}
        yield self.sample("WebP lossy", encode, cat, "WEBP", quality=95, far=3)
        yield self.sample("WebP lossless", encode, cat, "WEBP", **lossless)
        yield self.sample("WebP lossy with alpha", encode, self.faded, "WEBP", quality=95, far=3, fades=True)
        yield self.sample("WebP lossless with alpha", encode, self.faded, "WEBP", **alpha, far=0.5, fades=True)
        frames = {"save_all": True, "append_images": [self.upside_down], "duration": 100}
        yield self.sample("WebP animated", encode, cat, "WEBP", **lossless, **frames)
        frames = {**frames, "append_images": [self.faded.transpose(Image.Transpose.ROTATE_180)]}
        yield self.sample(
            "WebP animated with alpha", encode, self.faded, "WEBP", **alpha, **frames, far=0.5, fades=True
        )
        yield from self.orientations("WebP", "WEBP", **lossless)

    def bmp(self) -> Iterator[Sample]:
        bgr = np.ascontiguousarray(np.asarray(self.cat)[..., ::-1])
        height, width = bgr.shape[:2]
        yield self.sample("BMP palette 8 bit", self.palette_bmp, far=10)
        yield self.sample("BMP run lengths 8 bit", self.palette_bmp, run_lengths=True, far=10)
        blue, green, red = (bgr[..., channel].astype(np.uint16) for channel in range(3))
        rows = encoders.bmp_rows((red >> 3 << 11) | (green >> 2 << 5) | blue >> 3)
        masks = (0xF800, 0x7E0, 0x1F)
        yield self.sample("BMP 16 bit fields", encoders.bmp, rows, width, height, 16, compression=3, masks=masks, far=6)
        yield self.sample("BMP 24 bit", encoders.bmp, encoders.bmp_rows(bgr), width, height, 24)
        upright = encoders.bmp_rows(bgr, bottom_up=False)
        yield self.sample("BMP 24 bit top-down", encoders.bmp, upright, width, -height, 24)
        rows = encoders.bmp_rows(np.dstack([bgr, np.zeros_like(bgr[..., 0])]))
        yield self.sample("BMP 32 bit", encoders.bmp, rows, width, height, 32)
        rows = encoders.bmp_rows(np.ascontiguousarray(np.asarray(self.faded)[..., [2, 1, 0, 3]]))
        bmp = partial(encoders.bmp, header=108, compression=3, masks=(0xFF0000, 0xFF00, 0xFF, 0xFF000000))
        yield self.sample("BMP 32 bit with alpha V4", bmp, rows, width, height, 32, far=0.5, fades=True)

    def palette_bmp(self, *, run_lengths: bool = False) -> bytes:
        quantized = self.in_colours(256)
        colours = np.array(quantized.getpalette()).reshape(-1, 3)
        palette = np.zeros((256, 4), np.uint8)
        palette[: len(colours), :3] = colours[:256, ::-1]
        indices = np.asarray(quantized)
        rows = encoders.bmp_run_lengths(indices) if run_lengths else encoders.bmp_rows(indices)
        height, width = indices.shape
        return encoders.bmp(rows, width, height, 8, compression=int(run_lengths), palette=palette.tobytes())

    def gif(self) -> Iterator[Sample]:
        yield self.sample("GIF palette", self.in_256_colours, "GIF", far=10)
        yield self.sample("GIF interlaced", self.in_256_colours, "GIF", interlace=1, far=10)
        yield self.sample("GIF gray", encode, self.gray, "GIF", gray=True)
        frames = {"save_all": True, "append_images": [self.upside_down.quantize(256)]}
        yield self.sample("GIF animated", self.in_256_colours, "GIF", **frames, far=10)
        yield self.sample("GIF transparent", encode, self.faded, "GIF", far=20, fades=True)

    def tiff(self) -> Iterator[Sample]:
        cat = self.cat
        pixels, faded = np.asarray(cat), np.asarray(self.faded)
        for compression in ("raw", "tiff_lzw", "packbits", "tiff_adobe_deflate"):
            name = compression.removeprefix("tiff_")
            yield self.sample(f"TIFF RGB 8 bit {name}", encode, cat, "TIFF", compression=compression)
        yield self.sample("TIFF RGB 8 bit JPEG", encode, cat, "TIFF", compression="jpeg", quality=95, far=3)
        yield self.sample("TIFF bilevel group4", encode, cat.convert("1"), "TIFF", compression="group4", far=120)
        yield self.sample("TIFF gray 8 bit", encode, self.gray, "TIFF", gray=True)
        yield self.sample("TIFF palette", self.in_256_colours, "TIFF", far=10)
        yield self.sample("TIFF CMYK", encode, cat.convert("CMYK"), "TIFF", far=1)
        yield self.sample("TIFF YCbCr", encode, cat.convert("YCbCr"), "TIFF", far=2)
        wide = pixels.astype(np.uint16) * 257
        yield self.sample("TIFF RGB 16 bit", _tifffile, wide, photometric="rgb")
        gray = np.asarray(self.gray)
        wide = gray.astype(np.uint16) * 257
        yield self.sample("TIFF gray 16 bit", _tifffile, wide, photometric="minisblack", gray=True)
        yield self.sample("TIFF gray white is zero", _tifffile, 255 - gray, photometric="miniswhite", gray=True)
        yield self.sample("TIFF big-endian", _tifffile, pixels, photometric="rgb", byteorder=">")
        yield self.sample("TIFF BigTIFF", _tifffile, pixels, photometric="rgb", bigtiff=True)
        yield self.sample("TIFF tiles", _tifffile, pixels, photometric="rgb", tile=(64, 64))
        planes = np.ascontiguousarray(pixels.transpose(2, 0, 1))
        yield self.sample("TIFF planes", _tifffile, planes, photometric="rgb", planarconfig="separate")
        yield self.sample("TIFF pages", encode, cat, "TIFF", save_all=True, append_images=[self.upside_down])
        opacity = faded[..., 3:].astype(np.uint16)
        premultiplied = np.dstack([((faded[..., :3] * opacity + 127) // 255).astype(np.uint8), faded[..., 3]])
        for kind, name, values in (
            ("unassalpha", "alpha", faded),
            ("assocalpha", "associated alpha", premultiplied),
        ):
            tiff = partial(_tifffile, photometric="rgb", extrasamples=[kind])
            yield self.sample(f"TIFF RGB 8 bit with {name}", tiff, values, far=1, fades=True)
            wide = values.astype(np.uint16) * 257
            yield self.sample(f"TIFF RGB 16 bit with {name}", tiff, wide, far=1, fades=True)
        yield from self.orientations("TIFF")

    def avif(self) -> Iterator[Sample]:
        options = {"quality": 90, "speed": 9, "far": 4}
        frames = {"save_all": True, "append_images": [self.upside_down]}
        yield self.sample("AVIF lossy", encode, self.cat, "AVIF", **options)
        yield self.sample("AVIF with alpha", encode, self.faded, "AVIF", **options, fades=True)
        yield self.sample("AVIF animated", encode, self.cat, "AVIF", **options, **frames)
        for bits in (10, 12):
            bgra = np.asarray(self.faded)[..., [2, 1, 0, 3]].astype(np.uint16) << (bits - 8) | 2 ** (bits - 8) - 1
            yield self.sample(f"AVIF {bits} bit", _deep_avif, np.ascontiguousarray(bgra[..., :3]), bits, far=6)
            yield self.sample(f"AVIF {bits} bit with alpha", _deep_avif, bgra, bits, far=6, fades=True)
        yield from self.orientations("AVIF", **options)

    def heic(self) -> Iterator[Sample]:
        cat = self.cat
        options = {**QUICK_HEVC, "quality": 90, "far": 4}
        collection = {"save_all": True, "append_images": [self.upside_down]}
        yield self.sample("HEIC lossy", encode, cat, "HEIF", **options)
        yield self.sample("HEIC full colour", encode, cat, "HEIF", **{**options, "quality": 95}, chroma=444)
        yield self.sample("HEIC with alpha", encode, self.faded, "HEIF", **options, fades=True)
        yield self.sample("HEIC of several pictures", encode, cat, "HEIF", **options, **collection)
        yield self.sample("HEIC 10 bit", _deep_heic, cat, far=6)
        yield from self.orientations("HEIC", "HEIF", variant="turned by", **options)

    def jpeg2000(self) -> Iterator[Sample]:
        cat = self.cat
        yield self.sample("JPEG 2000 lossless", encode, cat, "JPEG2000")
        yield self.sample("JPEG 2000 codestream", encode, cat, "JPEG2000", no_jp2=True)
        lossy = {"irreversible": True, "quality_mode": "dB", "quality_layers": [30, 42]}
        yield self.sample("JPEG 2000 lossy", encode, cat, "JPEG2000", **lossy, far=4)
        yield self.sample("JPEG 2000 tiles", encode, cat, "JPEG2000", tile_size=(64, 64))
        yield self.sample("JPEG 2000 with alpha", encode, self.faded, "JPEG2000", far=1, fades=True)
        yield self.sample("JPEG 2000 gray", encode, self.gray, "JPEG2000", gray=True)
        deep = Image.fromarray(np.asarray(self.gray).astype(np.uint16) * 257)
        yield self.sample("JPEG 2000 gray 16 bit", encode, deep, "JPEG2000", gray=True)


def _deep_avif(bgra: NDArray[np.uint16], bits: int) -> bytes:
    options = [cv2.IMWRITE_AVIF_DEPTH, bits, cv2.IMWRITE_AVIF_SPEED, 9, cv2.IMWRITE_AVIF_QUALITY, 90]
    return cv2.imencode(".avif", np.ascontiguousarray(bgra), options)[1].tobytes()


def _deep_heic(picture: Image.Image) -> bytes:
    deep = np.asarray(picture).astype(np.uint16) << 8
    out = io.BytesIO()
    pillow_heif.from_bytes("RGB;16", picture.size, deep.tobytes()).save(out, quality=90, **QUICK_HEVC)
    return out.getvalue()


def _tifffile(pixels: NDArray[np.integer], **options: object) -> bytes:
    out = io.BytesIO()
    tifffile.imwrite(out, pixels, metadata=None, **options)
    return out.getvalue()
