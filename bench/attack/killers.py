"""Requests that are after a process: by its memory, or by its decoders."""

from bench.attack import files
from bench.attack.target import Attack, Target, attacks_of


def pngs_with_texts(target: Target) -> str:
    """Twelve PNGs at once with texts that inflate to 1.6 GB each, of the size of one request."""
    return target.post_files([files.png_with_texts(200)] * 12, name="x.png")


def jpegs_of_many_scans(target: Target) -> str:
    """Two hundred progressive JPEGs of 6,000 scans."""
    return target.post_files([files.progressive_jpeg_of_many_scans(2_000, 6_000)] * 200, "?timeout=60")


def damaged_pictures(target: Target) -> str:
    """Fifty pictures with whole headers and ends, and noise between."""
    whole = files.progressive_jpeg(400, 300)
    cut = [
        whole[:1_000] + bytes((number * place) % 256 for place in range(2_000)) + whole[3_000:] for number in range(50)
    ]
    return target.post_files(cut)


ATTACKS: list[Attack] = attacks_of(pngs_with_texts, jpegs_of_many_scans, damaged_pictures)
