"""HEIC: HEVC pictures in the boxes of HEIF, as phones write them: one picture, or a grid of tiles."""

import importlib.util
import struct

from gateway.errors import InvalidImage, UnsupportedFormat
from gateway.ingest.formats.heif import Heif, brands, damage_is_named, is_opacity, read_heif
from gateway.ingest.formats.hevc import coded_size
from gateway.ingest.image_info import ImageFormat, ImageInfo, upright

AVAILABLE = importlib.util.find_spec("pillow_heif") is not None
"""Whether its decoder, which is an extra, is installed."""
_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"})
_PICTURE, _GRID = b"hvc1", b"grid"


def is_heic(data: bytes) -> bool:
    """Whether the bytes begin as HEIF does, AVIF aside."""
    return not _BRANDS.isdisjoint(brands(data))


def read_heic(data: bytes) -> ImageInfo:
    """The primary picture. Its decoder crops, turns and mirrors it: `width` and `height` are those it then has."""
    if not AVAILABLE:
        raise UnsupportedFormat("This service does not decode HEIC: send JPEG, or ask its operator for the extra heic.")
    file = read_heif(data, "HEIC")
    with damage_is_named("HEIC"):
        return _read(file)


def _read(file: Heif) -> ImageInfo:
    kind = file.kinds.get(file.primary, b"")
    if kind not in (_PICTURE, _GRID):
        raise UnsupportedFormat("The HEIF file's primary picture is neither HEVC nor a grid of HEVC tiles.")
    width, height = file.size()
    own = [file.primary] if kind == _PICTURE else file.parts.get(file.primary, [])
    if kind == _GRID and (width, height) != _grid_size(file.contents(file.primary)):
        raise InvalidImage("The HEIC's header and its grid disagree about its size.")
    sizes = _coded_sizes(file)
    if not own or not sizes.keys() >= set(own):
        raise InvalidImage("The HEIC's primary picture has parts that are not HEVC pictures.")
    # What is decoded: a tile as often as it is used, and opacity, but no other picture of a collection.
    opacity = [item for item in sizes if is_opacity(file.properties[item])]
    file.check_pixels(sum(sizes[item][0] * sizes[item][1] for item in (*own, *opacity)))
    if kind == _PICTURE and not (width <= sizes[file.primary][0] and height <= sizes[file.primary][1]):
        raise InvalidImage("The HEIC's header and its picture disagree about its size.")
    width, height = _cropped(width, height, file.own.get(b"clap"))
    return ImageInfo(
        ImageFormat.HEIC,
        *upright(width, height, file.orientation()),
        bit_depth=max(sizes[item][2] for item in own),
        has_alpha=file.has_alpha,
        by_pillow=True,
    )


def _coded_sizes(file: Heif) -> dict[int, tuple[int, int, int]]:
    """Width, height and bits of each HEVC picture. Tiles share a header, which is read once."""
    sizes: dict[int, tuple[int, int, int]] = {}
    read: dict[bytes, tuple[int, int, int]] = {}
    for item, properties in file.properties.items():
        header = properties.get(b"hvcC")
        if header is None:
            continue
        if header not in read:
            size = coded_size(header, file.steps)
            if size is None:
                raise InvalidImage("The HEIC's picture does not say its size.")
            read[header] = size
        sizes[item] = read[header]
    return sizes


def _grid_size(grid: bytes) -> tuple[int, int]:
    """Width and height of what a grid's tiles make together (ISO/IEC 23008-12, section 6.6.2.3.2)."""
    width, height = struct.unpack_from(">II" if grid[1] & 1 else ">HH", grid, 4)
    return width, height


def _cropped(width: int, height: int, clap: bytes | None) -> tuple[int, int]:
    """The size within a clean aperture (ISO/IEC 14496-12, section 12.1.4)."""
    if clap is None:
        return width, height
    w_n, w_d, h_n, h_d = struct.unpack_from(">IIII", clap)
    if not w_d or not h_d:
        raise InvalidImage("The HEIC's clean aperture is damaged.")
    return min(width, w_n // w_d), min(height, h_n // h_d)
