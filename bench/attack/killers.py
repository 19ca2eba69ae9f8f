"""Requests that are after a process: by its memory, or by its decoders."""

from dataclasses import replace
from functools import cache

from bench.attack import files
from bench.attack.fleet import KILLER
from bench.attack.parsers import SMALL_BMP
from bench.attack.target import Attack, Target, attacks_of
from bench.photos import coffee, unlike_any


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


def picture_that_kills(target: Target) -> str:
    """A picture that ends the process which decodes it; two workers, three Tritons."""
    return target.post_files([_killer("alone")])


def picture_that_kills_among_others(target: Target) -> str:
    """Another one, among seven good ones."""
    return target.post_files([SMALL_BMP] * 4 + [_killer("among others")] + [SMALL_BMP] * 3)


@cache
def _killer(_: str) -> bytes:
    """A photograph that no quarantine knows yet."""
    comment = b"\xff\xfe" + (2 + len(KILLER)).to_bytes(2, "big") + KILLER
    photo = unlike_any(coffee().data)
    return photo[:2] + comment + photo[2:]


ATTACKS: list[Attack] = attacks_of(pngs_with_texts, jpegs_of_many_scans, damaged_pictures)
ON_FLEET: list[Attack] = [
    replace(attack, may_kill=2) for attack in attacks_of(picture_that_kills, picture_that_kills_among_others)
]
"""Those for bench.attack.fleet: a picture that kills ends two processes at most."""
