"""AVIF: one AV1 picture in the boxes of HEIF."""

import struct

from gateway.errors import InvalidImage
from gateway.ingest.formats.av1 import frame_size
from gateway.ingest.formats.bits import HEADER_STEPS
from gateway.ingest.formats.exif import exif_orientation, without_prefix, xmp_orientation
from gateway.ingest.formats.heif import Heif, brands, damage_is_named, read_heif
from gateway.ingest.image_info import ImageFormat, ImageInfo, upright

_BRANDS = frozenset({b"avif", b"avis"})
_MAX_HEADER_BYTES = 512


def is_avif(data: bytes) -> bool:
    """Whether the bytes begin as AVIF does."""
    return not _BRANDS.isdisjoint(brands(data))


def read_avif(data: bytes) -> ImageInfo:
    """The primary picture, at 8, 10 or 12 bits, with or without an alpha plane."""
    file = read_heif(data, "AVIF")
    with damage_is_named("AVIF"):
        width, height = file.size()
        _check_frames(file)
        orientation = file.orientation()
        bit_depth = _bit_depth(file.own.get(b"av1C", b"\0\0\0"))
    if orientation == 1:
        orientation = _orientation_by_xmp(file)
    return ImageInfo(
        ImageFormat.AVIF,
        *upright(width, height, orientation),
        orientation,
        bit_depth=bit_depth,
        has_alpha=file.has_alpha,
        animated=b"avis" in brands(data),
    )


def _orientation_by_xmp(file: Heif) -> int:
    """What XMP says where EXIF says nothing; EXIF's own word does not count, since irot and imir have it."""
    exif = file.contents(file.first_of(b"Exif"))
    # Before the TIFF structure stands how far it is (ISO/IEC 23008-12, annex A).
    if exif_orientation(without_prefix(exif[4 + int.from_bytes(exif[:4], "big") :])) is not None:
        return 1
    return xmp_orientation(file.contents(file.first_of(b"XMP "))) or 1


def _check_frames(file: Heif) -> None:
    """Hold each AV1 picture to the size that its item states: decoders set memory aside for the picture's own."""
    total = 0
    for item, properties in file.properties.items():
        if not {b"av1C", b"ispe"} <= properties.keys() or not file.extents.get(item):
            continue
        # Of a header in several pieces the first is enough, or it is none that an encoder writes.
        file.steps.take(HEADER_STEPS)
        frame = frame_size(file.beginning(item, _MAX_HEADER_BYTES))
        if frame is None or frame != struct.unpack_from(">II", properties[b"ispe"], 4):
            raise InvalidImage("The AVIF's header and its picture disagree about its size.")
        total += frame[0] * frame[1]
    file.check_pixels(total)


def _bit_depth(av1c: bytes) -> int:
    """Out of the AV1 codec configuration: high_bitdepth and twelve_bit."""
    return 12 if av1c[2] & 0x20 else 10 if av1c[2] & 0x40 else 8
