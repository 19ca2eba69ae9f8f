"""Requests that try to end a process: by its memory, or by its decoders."""

from functools import cache

from bench.attack import files
from bench.attack.fleet import KILLER
from bench.attack.parsers import SMALL_BMP
from bench.attack.target import Attacks, Target
from bench.photos import coffee, unlike_any

ATTACKS = Attacks()
ON_FLEET = Attacks()
"""Attacks on bench.attack.fleet, where an image may end two processes."""


@ATTACKS.add()
def damaged_pictures(target: Target) -> str:
    """Fifty images with valid headers and endings, and noise between."""
    whole = files.progressive_jpeg(400, 300)
    cut = [
        whole[:1_000] + bytes((number * place) % 256 for place in range(2_000)) + whole[3_000:] for number in range(50)
    ]
    return target.post_files(cut)


@cache
def _killer(_: str) -> bytes:
    """A photograph that ends the process that decodes it, in no quarantine yet."""
    comment = b"\xff\xfe" + (2 + len(KILLER)).to_bytes(2, "big") + KILLER
    photo = unlike_any(coffee().data)
    return photo[:2] + comment + photo[2:]


# fmt: off
ATTACKS.rows(
    ("pngs-with-texts", "Twelve PNGs at once with texts that inflate to 1.6 GB each, of the size of one request",
     lambda target: target.post_files([files.png_with_texts(200)] * 12, name="x.png")),
    ("jpegs-of-many-scans", "Two hundred progressive JPEGs of 6,000 scans",
     lambda target: target.post_files([files.progressive_jpeg_of_many_scans(2_000, 6_000)] * 200, "?timeout=60")),
)
# fmt: on

# fmt: off
ON_FLEET.rows(
    ("picture-that-kills", "An image that ends the process which decodes it; two workers, three Tritons",
     lambda target: target.post_files([_killer("alone")])),
    ("picture-that-kills-among-others", "Another such image among seven good ones",
     lambda target: target.post_files([SMALL_BMP] * 4 + [_killer("among others")] + [SMALL_BMP] * 3)),
    may_kill=2,
)
# fmt: on
