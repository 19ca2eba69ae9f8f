"""The image formats that are accepted, one entry each; and what is known of an image before it is decoded.

A new format also needs samples in tests/samples.py and a row in docs/reference/images.md; a decoder's package, an extra
in pyproject.toml and constraints.txt, and its installation in the Dockerfile. Tests name the other lists of formats.
"""

from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec


class ImageFormat(StrEnum):
    """The accepted formats by their usual names, in the order in which a file is compared with them."""

    JPEG = "JPEG"
    PNG = "PNG"
    WEBP = "WebP"
    BMP = "BMP"
    GIF = "GIF"
    TIFF = "TIFF"
    AVIF = "AVIF"
    HEIC = "HEIC"
    JPEG_2000 = "JPEG 2000"

    traits: "FormatTraits"
    """The format's entry in FORMATS."""

    @property
    def available(self) -> bool:
        """Whether the package that decodes the format is installed."""
        return self in AVAILABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatTraits:
    """Properties of a format. Times are upper bounds on one core of a small server."""

    magic: bytes = rb"(?!)"
    """A regular expression for the beginning of a file."""
    brands: frozenset[bytes] = frozenset()
    """Brands of an ISO base media file (ISO/IEC 14496-12, section 4.3), any of which identifies the format."""
    suffixes: tuple[str, ...] = ()
    """Suffixes of file names."""
    passed_on: bool = False
    """Whether Triton's preprocessor decodes the format. Only then does the serving process read its header, in
    `gateway.ingest.formats`; the header of any other format is read in a decoder's process."""
    pillow: str = ""
    """Pillow's name of the format."""
    package: str = ""
    """An optional package without which the format is refused; the extra that installs it has the format's name."""
    bytes_per_pixel: int = 0
    """Memory that its decoder needs at its peak, where that is more than twice the decoded pixels."""
    ns_per_pixel: float
    ns_per_byte: float = 20
    slow: bool = False
    """Whether each byte of a file holds more pixels, and costs more time, than with the other formats."""


FORMATS = {
    ImageFormat.JPEG: FormatTraits(
        magic=rb"\xff\xd8\xff",
        suffixes=("jpeg", "jpg", "jpe", "jfif"),
        passed_on=True,
        pillow="JPEG",
        ns_per_pixel=6,
        ns_per_byte=11,
    ),
    ImageFormat.PNG: FormatTraits(
        magic=rb"\x89PNG\r\n\x1a\n", suffixes=("png",), passed_on=True, pillow="PNG", ns_per_pixel=9
    ),
    ImageFormat.WEBP: FormatTraits(
        magic=rb"RIFF.{4}WEBP", suffixes=("webp",), passed_on=True, pillow="WEBP", ns_per_pixel=6, ns_per_byte=100
    ),
    ImageFormat.BMP: FormatTraits(
        # "BM" and a header of less than 1,024 bytes, so that text is not mistaken for a bitmap; or, as in a
        # clipboard, a header without "BM", with one plane and a valid number of bits.
        magic=rb"BM(.{12}.[\x00-\x03]\0\0|.{0,15}\Z)"
        rb"|(?=.{40})[\x28\x34\x38\x40\x6c\x7c]\0\0\0.{8}\x01\0[\x01\x04\x08\x10\x18\x20]\0",
        suffixes=("bmp", "dib"),
        passed_on=True,
        pillow="BMP",
        ns_per_pixel=6,
    ),
    ImageFormat.GIF: FormatTraits(magic=rb"GIF8[79]a", suffixes=("gif",), pillow="GIF", ns_per_pixel=12),
    ImageFormat.TIFF: FormatTraits(
        magic=rb"II[*+]\0|MM\0[*+]", suffixes=("tif", "tiff"), pillow="TIFF", bytes_per_pixel=20, ns_per_pixel=9
    ),
    ImageFormat.AVIF: FormatTraits(
        brands=frozenset({b"avif", b"avis"}),
        suffixes=("avif",),
        pillow="AVIF",
        bytes_per_pixel=40,
        ns_per_pixel=40,
        ns_per_byte=160,
        slow=True,
    ),
    ImageFormat.HEIC: FormatTraits(
        brands=frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}),
        suffixes=("heic", "heif", "hif"),
        pillow="HEIF",
        package="pillow_heif",
        bytes_per_pixel=30,
        ns_per_pixel=25,
        ns_per_byte=300,
        slow=True,
    ),
    ImageFormat.JPEG_2000: FormatTraits(
        magic=rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
        suffixes=("jp2", "j2k"),
        pillow="JPEG2000",
        bytes_per_pixel=30,
        ns_per_pixel=50,
        ns_per_byte=200,
        slow=True,
    ),
}
for _format, _traits in FORMATS.items():
    _format.traits = _traits
AVAILABLE = frozenset(each for each, traits in FORMATS.items() if not traits.package or find_spec(traits.package))
"""The formats whose decoder is installed."""

SUFFIXES = frozenset(f".{suffix}" for traits in FORMATS.values() for suffix in traits.suffixes)
"""Files in a folder with one of these suffixes are images; a file that is named by itself may have any name."""


def accepted_formats() -> str:
    """The names of the formats that are accepted as images, as a list for a sentence."""
    names = [each.value for each in ImageFormat if each.available]
    return f"{', '.join(names[:-1])} or {names[-1]}"


@dataclass(slots=True)
class Header:
    """The header of the first frame or page of an image."""

    format: ImageFormat
    width: int
    """Pixels of the upright image: after `orientation` was applied."""
    height: int
    orientation: int = 1
    """EXIF's 1 to 8; 1: as stored."""
    bit_depth: int = 8
    """The largest of the channels."""
    has_alpha: bool = False
    """Whether pixels may be transparent."""
    premultiplied: bool = False
    """Whether the decoder returns colours multiplied by alpha."""
    transparent_gray: int | None = None
    """The transparent level of a grayscale PNG without an alpha channel."""
    rewritten: bool = False
    """Whether decoders get other bytes than the file's; see `inspection.encoded`."""
    isolated: bool = False
    """Whether only the gateway's decoders may open it, since its cost or its pixels elsewhere are not known."""
    by_pillow: bool = False
    """Whether OpenCV would decode it wrong. Pillow also decodes images that OpenCV cannot open."""
    coefficient_bytes: int = 0
    """Memory for the coefficients of a JPEG in several scans, beside its pixels."""
    scans: int = 1
    """Upper bound of a JPEG's scans."""
    animated: bool = False
    """Whether there may be further frames."""


def upright(stored_width: int, stored_height: int, orientation: int) -> tuple[int, int]:
    """Width and height of the upright image; orientations 5 to 8 rotate by 90 degrees."""
    return (stored_height, stored_width) if orientation >= 5 else (stored_width, stored_height)
