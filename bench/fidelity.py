"""`python -m bench.fidelity FOLDER`: how close the service's pixels are to Pillow's for a folder of images.

Every file that Pillow opens in a supported format goes through ingest with the default settings. The pixels that the
preprocessor would get are compared with Pillow's: the first frame, upright, on white.
"""

import argparse
import io
import resource
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gateway.environment import load_settings
from gateway.errors import ImageError
from gateway.ingest.image_formats import accepted_formats
from gateway.ingest.inspection import DecodePolicy
from gateway.ingest.upload import Upload
from gateway_decoder.in_process import prepare
from gateway_decoder.opencv import cv2
from gateway_models.proof.reference import shown

SAME_LEVELS = 1.0
"""Mean difference, of 255 levels, up to which two decoded images count as the same."""
MOST_PIXELS, MOST_MEMORY_BYTES = 50_000_000, 4 * 2**30
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "DIB", "GIF", "TIFF", "AVIF", "HEIF", "JPEG2000")


@dataclass
class Row:
    """The results for the images of one format."""

    images: int = 0
    answered: int = 0
    same: int = 0
    worst: float = 0.0
    others: list[str] = field(default_factory=list)


def reference(data: bytes) -> tuple[str, NDArray[np.uint8]]:
    """The format and the image as decoded by Pillow, uint8 [height, width, 3]; raises Pillow's errors."""
    with warnings.catch_warnings(action="ignore"):
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        name = str(image.format)
        if image.width * image.height > MOST_PIXELS:
            raise ValueError("too large to compare")
        return name, np.asarray(shown(image))


def served(data: bytes, policy: DecodePolicy) -> NDArray[np.uint8] | str:
    """The image as the preprocessor gets it, or the error code that the client gets."""
    try:
        payload = prepare(Upload(0, "", data), policy).payload
    except ImageError as error:
        return error.code
    try:
        seen = cv2.imdecode(np.frombuffer(payload, np.uint8), cv2.IMREAD_COLOR_RGB)
    except cv2.error:
        seen = None
    return "undecodable_image" if seen is None else seen.astype(np.uint8, copy=False)


def distance(seen: NDArray[np.uint8], wanted: NDArray[np.uint8]) -> float:
    """Mean difference in levels; if the gateway has reduced the image, the other one is reduced as well."""
    if seen.shape != wanted.shape:
        if seen.shape[0] > wanted.shape[0] or seen.shape[0] * wanted.shape[1] // wanted.shape[0] not in range(
            seen.shape[1] - 2, seen.shape[1] + 3
        ):
            return float("inf")
        wanted = np.asarray(Image.fromarray(wanted).resize(seen.shape[1::-1], Image.Resampling.BOX))
    return float(np.abs(seen.astype(np.int16) - wanted).mean())


def compare(files: Iterator[Path], policy: DecodePolicy) -> dict[str, Row]:
    """A row for each format."""
    rows: dict[str, Row] = {}
    for path in files:
        data = path.read_bytes()
        try:
            name, wanted = reference(data)
        except Exception:  # noqa: S112  # Pillow does not open it, so there is no reference
            continue
        row = rows.setdefault(name, Row())
        row.images += 1
        seen = served(data, policy)
        if isinstance(seen, str):
            row.others.append(f"{path}: {seen}")
            continue
        row.answered += 1
        far = distance(seen, wanted)
        row.worst = max(row.worst, far)
        row.same += far <= SAME_LEVELS
        if far > SAME_LEVELS:
            row.others.append(f"{path}: {far:.1f} levels away")
    return rows


def main() -> int:
    """Print the table, and each image that differs."""
    parser = argparse.ArgumentParser(prog="python -m bench.fidelity", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="+", help="a folder of images, such as a test corpus of a library")
    options = parser.parse_args()
    # A test corpus contains files that are made to exhaust memory.
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    files = (path for folder in options.folder for path in sorted(folder.rglob("*")) if path.is_file())
    rows = compare(files, DecodePolicy.from_settings(load_settings()))
    print(f"formats taken: {accepted_formats()}; the same: within {SAME_LEVELS:g} of 255 levels in the mean")
    print("| format | images that Pillow opens | answered | the same | farthest |\n|---|---|---|---|---|")
    for name, row in sorted(rows.items()):
        print(f"| {name} | {row.images} | {row.answered} | {row.same} | {row.worst:.2f} |")
    for row in rows.values():
        for line in row.others:
            print(line)
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
