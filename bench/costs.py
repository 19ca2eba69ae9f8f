"""`python -m bench.costs`: the processor time of decoding each format, beside what the gateway expects of it.

The source of the figures in gateway/ingest/decode_budget.py and account.py. Decoded and resized as the preprocessor and
the gateway's decoders do it, on one core; the least of some rounds counts.
"""

import io
import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated

import cv2
import numpy as np
import skimage.data
import typer
from numpy.typing import NDArray
from PIL import Image

from bench import costly_files as files
from bench.output import Into, put, table
from gateway.ingest.decode_budget import expected_frame_seconds, expected_seconds
from gateway.ingest.image_info import ImageInfo
from gateway.ingest.inspection import encoded
from gateway.ingest.resizing import Resize
from gateway.ingest.upload import Limits, Upload
from gateway.limits.account import (
    SECONDS_PER_IMAGE,
    SECONDS_PER_MEGABYTE,
    SECONDS_PER_MEGABYTE_OF_SLOW_CODECS,
)
from gateway.plugins import settings_class
from gateway_decoder.decoding import decode
from gateway_decoder.frames import OpenedAnimation
from gateway_decoder.in_process import inspect_whole
from gateway_plugins.media.animation import read_frames

Settings = settings_class()

LIMITS = Limits.from_settings(Settings())
RESIZE = Resize((256,), "bilinear")
FORMS: dict[str, dict[str, object]] = {
    "JPEG": {"quality": 90},
    "JPEG, progressive": {"quality": 85, "progressive": True},
    "PNG": {},
    "WEBP": {"quality": 80, "method": 0},
    "BMP": {},
    "GIF": {},
    "TIFF": {"compression": "tiff_lzw"},
    "AVIF": {"speed": 9},
    "HEIF": {"quality": 60},
    "JPEG2000": {"irreversible": True, "quality_mode": "rates", "quality_layers": [20]},
}
HEADER = ["file", "MB", "megapixels", "takes, ms", "ns a pixel", "ns a byte", "expected / taken", "allowed / taken"]


def contents(side: int) -> dict[str, NDArray[np.uint8]]:
    """Contents of images: one colour, a cup of coffee, and noise, which takes the most bytes."""
    generator = np.random.default_rng(0)
    photo = cv2.resize(skimage.data.coffee(), (side, side), interpolation=cv2.INTER_CUBIC)
    grain = generator.integers(-4, 5, photo.shape, np.int16)
    return {
        "black": np.zeros((side, side, 3), np.uint8),
        "photograph": np.clip(photo + grain, 0, 255).astype(np.uint8),
        "noise": generator.integers(0, 256, photo.shape, np.uint8),
    }


def stills(side: int) -> Iterator[tuple[str, bytes]]:
    """Still images of each format, and some of the most costly."""
    import pillow_heif

    pillow_heif.register_heif_opener()
    for (name, options), (what, pixels) in itertools.product(FORMS.items(), contents(side).items()):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, name.partition(",")[0], **options)
        yield f"{name}, {what}", file.getvalue()
    yield "PNG, black, 1 bit", files.png(side, side, bits=1, colour=0)
    yield "PNG, black, 1 bit, 49 megapixels", files.png(7_000, 7_000, bits=1, colour=0)
    yield "JPEG of 240 scans", files.progressive_jpeg_of_many_scans(2_000, 240)


def milliseconds(work: Callable[[], object], rounds: int) -> float:
    """The least processor time of several rounds."""
    least = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        work()
        least = min(least, time.process_time() - began)
    return 1e3 * least


def row(name: str, nbytes: int, info: ImageInfo, taken: float, expected: float, images: int) -> list[str]:
    """A line of the table; `taken` is in milliseconds, for `images` images together."""
    pixels = info.width * info.height
    megabyte = SECONDS_PER_MEGABYTE_OF_SLOW_CODECS if info.format.traits.slow else SECONDS_PER_MEGABYTE
    allowed = 1e3 * (images * SECONDS_PER_IMAGE + nbytes / 1e6 * megabyte)
    return [
        name,
        f"{nbytes / 1e6:.2f}",
        f"{pixels / 1e6:.1f}",
        f"{taken:.1f}",
        f"{1e6 * taken / pixels:.1f}",
        f"{1e6 * taken / nbytes:.0f}",
        f"{1e3 * expected / taken:.1f}",
        f"{allowed / taken:.1f}",
    ]


def main(
    side: Annotated[int, typer.Option(help="Side of the square images, in pixels.", min=100)] = 2_500,
    rounds: Annotated[int, typer.Option(help="The result is the least of them.", min=1)] = 3,
    into: Into = None,
) -> None:
    """Print the time of decoding, and its ratios to the expected time and to the limit above `request_cpu_seconds`."""
    rows = []
    for name, data in stills(side):
        info = inspect_whole(data, LIMITS)
        payload = encoded(Upload(0, "", data), info)
        taken = milliseconds(partial(decode, payload, info, RESIZE), rounds)
        rows.append(row(name, len(data), info, taken, expected_seconds(info, len(data)), 1))
    data = files.gif_of_frames(3_000, 5)
    info = inspect_whole(data, LIMITS)
    taken = milliseconds(lambda: _walk(data, info), rounds) / 5
    rows.append(row("GIF, a frame of 9 megapixels", len(data) // 5, info, taken, expected_frame_seconds(info), 1))
    text = table(HEADER, rows)
    print(text)
    if into is not None:
        put(into, "bench.costs", text)


def _walk(data: bytes, info: ImageInfo) -> None:
    animation = OpenedAnimation(data, info, RESIZE, read_frames("all", 1_000))
    while animation.step() is not False:
        pass


if __name__ == "__main__":
    typer.run(main)
