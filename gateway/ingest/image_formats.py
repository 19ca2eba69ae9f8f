"""The accepted image formats, one entry each; the facts in a header, and the limits of decoding.

A new format also needs samples in tests/samples.py and a row in docs/reference/images.md; a decoder's package, an extra
in pyproject.toml and constraints.txt, and its installation in the Dockerfile. Tests name the other lists of formats.
"""

from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from math import ceil

from gateway.ingest.resizing import FAST_OVERSAMPLING, Resize, TensorInput


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
    may_pass_on: bool = False
    """Whether Triton's preprocessor decodes the format. Only then does the serving process read its header, in
    `gateway.ingest.formats`; the header of any other format is read in a decoder's process."""
    pillow: str
    """Pillow's name of the format."""
    plugin: str
    """The module with Pillow's plug-in."""
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
        may_pass_on=True,
        pillow="JPEG",
        plugin="PIL.JpegImagePlugin",
        ns_per_pixel=6,
        ns_per_byte=11,
    ),
    ImageFormat.PNG: FormatTraits(
        magic=rb"\x89PNG\r\n\x1a\n", may_pass_on=True, pillow="PNG", plugin="PIL.PngImagePlugin", ns_per_pixel=9
    ),
    ImageFormat.WEBP: FormatTraits(
        magic=rb"RIFF.{4}WEBP",
        may_pass_on=True,
        pillow="WEBP",
        plugin="PIL.WebPImagePlugin",
        ns_per_pixel=6,
        ns_per_byte=100,
    ),
    ImageFormat.BMP: FormatTraits(
        # "BM" and a header of less than 1,024 bytes, so that text is not mistaken for a bitmap.
        magic=rb"BM(.{12}.[\x00-\x03]\0\0|.{0,15}\Z)",
        pillow="BMP",
        plugin="PIL.BmpImagePlugin",
        ns_per_pixel=6,
    ),
    ImageFormat.GIF: FormatTraits(magic=rb"GIF8[79]a", pillow="GIF", plugin="PIL.GifImagePlugin", ns_per_pixel=12),
    ImageFormat.TIFF: FormatTraits(
        magic=rb"II[*+]\0|MM\0[*+]",
        pillow="TIFF",
        plugin="PIL.TiffImagePlugin",
        bytes_per_pixel=20,
        ns_per_pixel=9,
    ),
    ImageFormat.AVIF: FormatTraits(
        brands=frozenset({b"avif", b"avis"}),
        pillow="AVIF",
        plugin="PIL.AvifImagePlugin",
        bytes_per_pixel=40,
        ns_per_pixel=40,
        ns_per_byte=160,
        slow=True,
    ),
    ImageFormat.HEIC: FormatTraits(
        brands=frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}),
        pillow="HEIF",
        plugin="pillow_heif.HeifImagePlugin",
        package="pillow_heif",
        bytes_per_pixel=30,
        ns_per_pixel=25,
        ns_per_byte=300,
        slow=True,
    ),
    ImageFormat.JPEG_2000: FormatTraits(
        magic=rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
        pillow="JPEG2000",
        plugin="PIL.Jpeg2KImagePlugin",
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
    """EXIF's 1 to 8; 1: as the decoder shows it."""
    bit_depth: int = 8
    """The largest of the channels."""
    has_alpha: bool = False
    """Whether pixels may be transparent."""
    rewritten: bool = False
    """Whether Triton gets other bytes than the file's; see `inspection.for_triton`."""
    gateway_only: bool = False
    """Whether only the gateway's decoders may open it, since its cost or its pixels elsewhere are not known."""
    coefficient_bytes: int = 0
    """Memory for the coefficients of a JPEG in several scans, in addition to its pixels."""
    scans: int = 1
    """Upper bound of a JPEG's scans."""
    animated: bool = False
    """Whether the file may have more than one frame."""


def upright(stored_width: int, stored_height: int, orientation: int) -> tuple[int, int]:
    """Width and height of the upright image; orientations 5 to 8 rotate by 90 degrees."""
    return (stored_height, stored_width) if orientation >= 5 else (stored_width, stored_height)


MIB = 2**20
REDUCTIONS = (8, 4, 2)
"""Factors by which libjpeg can reduce an image while it decodes it."""

Size = int | Resize | TensorInput
"""A decoder's output: resized as by the model's preprocessor, at most this many pixels on the shorter side, or the
model's input."""

_BYTES_PER_PIXEL = 16
"""Address space for a decoder of a format without a measured figure."""
_ANIMATION_BYTES_PER_PIXEL = 48
"""For an animation: its canvas, the previous one, the area of a frame, and the frame on white."""
_MARGIN_BYTES = 96 * MIB

_NS_PER_PIXEL_OF_A_SCAN, _NS_PER_BYTE_OF_SCANS = 0.5, 45
"""For JPEGs in several scans."""
_NS_PER_PIXEL_OF_A_FRAME = 20
_LEAST_SECONDS = 0.0002
_RESERVED_TIMES, _RESERVED_SECONDS = 3, 0.05
"""A decode reserves this many times the estimate, plus a constant: other machines are slower."""
_MOST_SECONDS_PER_PIXEL, _MOST_SECONDS_PER_BYTE, _MOST_SECONDS = 200e-9, 50e-9, 0.55
"""Limit for one image: the slowest kind, 12-bit AVIF with alpha, takes some 100 ns a pixel."""
CPU_SECONDS = 3.0
"""Processor time for decoding one image; less for a small one."""
DECODER_START_SECONDS = 0.2
"""Processor time to start a decoder's process, until one was measured."""


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """Limits of one image of any size; a request's account begins with `request_cpu_seconds`."""

    cpu_seconds: float
    memory_bytes: int
    image_pixels: int = 1_000_000_000
    """Largest width × height that OpenCV opens."""
    request_cpu_seconds: float = 3.0


def reduction(info: Header, size: Size) -> int:
    """The factor by which a JPEG is reduced while it is decoded; 1 if every pixel is needed."""
    if isinstance(size, TensorInput):
        size = size.resize
    if info.format is not ImageFormat.JPEG or (isinstance(size, Resize) and not size.fast):
        return 1
    least = FAST_OVERSAMPLING * max(size.size) if isinstance(size, Resize) else size
    return next((factor for factor in REDUCTIONS if min(info.width, info.height) // factor >= least), 1)


def peak_bytes(info: Header, size: Size) -> int:
    """Peak memory of a decoder: twice the pixels, or the figure of its format."""
    pixels = info.width * info.height
    return max(2 * decoded_bytes(info, size), pixels * info.format.traits.bytes_per_pixel)


def decoded_bytes(info: Header, size: Size) -> int:
    """Bytes of the pixels before they are resized, and of a JPEG's coefficients."""
    factor = reduction(info, size)
    channels = 4 if info.has_alpha else 3
    sample_bytes = 2 if info.has_alpha and info.bit_depth > 8 else 1
    pixels = -(-info.width // factor) * -(-info.height // factor)
    return pixels * channels * sample_bytes + info.coefficient_bytes


def shrunk_bytes(info: Header, size: Size) -> int:
    """Bytes of the decoder's output; a few more if it was decoded at a reduced scale."""
    if isinstance(size, TensorInput):
        return size.nbytes
    if isinstance(size, Resize):
        height, width = size.size_of(info.height, info.width)
        return height * width * 3
    scale = min(1.0, size / min(info.width, info.height))
    return ceil(info.width * scale) * ceil(info.height * scale) * 3


def memory_limit(info: Header, nbytes: int) -> int:
    """The address space that decoding a file of `nbytes` may add to its process."""
    pixels = info.width * info.height
    bytes_per_pixel = info.format.traits.bytes_per_pixel or _BYTES_PER_PIXEL
    return _MARGIN_BYTES + 2 * nbytes + pixels * bytes_per_pixel + info.coefficient_bytes


def open_bytes(info: Header, nbytes: int) -> int:
    """The address space that an open animation of `nbytes` may add to its process."""
    return _MARGIN_BYTES + 3 * nbytes + info.width * info.height * _ANIMATION_BYTES_PER_PIXEL


def expected_seconds(info: Header, nbytes: int) -> float:
    """Upper bound of decoding and resizing an inspected image of `nbytes`, on one core of a small server."""
    pixels = info.width * info.height
    traits = info.format.traits
    per_pixel, per_byte = traits.ns_per_pixel, traits.ns_per_byte
    if info.scans > 1:
        per_pixel += info.scans * _NS_PER_PIXEL_OF_A_SCAN
        per_byte = _NS_PER_BYTE_OF_SCANS
    elif info.bit_depth > 8 or info.has_alpha:
        per_pixel *= 2
    return _LEAST_SECONDS + 1e-9 * (pixels * per_pixel + nbytes * per_byte)


def expected_frame_seconds(info: Header) -> float:
    """The estimate for one frame of an animation."""
    return _LEAST_SECONDS + 1e-9 * info.width * info.height * _NS_PER_PIXEL_OF_A_FRAME


def reserve_seconds(expected: float) -> float:
    """Seconds to reserve for a decode with this estimate."""
    return _RESERVED_TIMES * expected + _RESERVED_SECONDS


def most_seconds(info: Header, nbytes: int) -> float:
    """Limit for one image, or one frame, of a file of `nbytes`."""
    return _MOST_SECONDS + info.width * info.height * _MOST_SECONDS_PER_PIXEL + nbytes * _MOST_SECONDS_PER_BYTE
