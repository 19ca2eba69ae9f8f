"""Requests of many files, each of which costs as much as a file may."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

from bench.attack import files
from bench.attack.target import Attacks, Target

ATTACKS = Attacks()
CONNECTIONS, SECONDS = 4, 4.0
ALL_FRAMES = "?frames=all&top_k=1&timeout=100"
NDJSON = "Accept: application/x-ndjson"


@ATTACKS.add(requests=CONNECTIONS)
def photos_of_50_megapixels(target: Target) -> str:
    """As many JPEGs of 49 megapixels as fit, as a camera takes them, on four connections for four seconds."""
    photo = files.large_photo(7_000, 7_000)
    ends = time.monotonic() + SECONDS
    answers: set[str] = set()

    def send() -> None:
        while time.monotonic() < ends:
            with contextlib.suppress(OSError):
                answers.add(target.post_files([photo] * max(1, target.nbytes // len(photo) // CONNECTIONS)))

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        for _ in range(CONNECTIONS):
            threads.submit(send)
    return ", ".join(sorted(answers))


# fmt: off
ATTACKS.rows(
    ("black-pngs", "150 black PNGs of 49 megapixels, one bit each: 0.9 MB",
     lambda target: target.post_files([files.black_png(7_000)] * 150, "?timeout=100", name="x.png")),
    ("a-thousand-black-pngs", "A thousand black PNGs of 49 megapixels, 6 MB",
     lambda target: target.post_files([files.black_png(7_000)] * 1_000, "?timeout=100", name="x.png")),
    ("black-pngs-as-lines", "A thousand black PNGs of 49 megapixels, answered as NDJSON",
     lambda target: target.post_files([files.black_png(7_000)] * 1_000, "?timeout=100", "x.png", NDJSON)),
    ("two-frames-of-long-gifs", "Two frames of each of four GIFs of 9,000 frames",
     lambda target: target.post_files([files.gif_of_patches(300, 9_000)] * 4, "?frames=2", name="x.gif")),
    ("two-frames-of-long-large-gifs",
     "Two frames of each of four GIFs of 2000 × 2000 pixels and 9,000 frames",
     lambda target: target.post_files([files.gif_of_patches(2_000, 9_000)] * 4, "?frames=2", name="x.gif")),
    ("two-frames-of-many-long-gifs", "Two frames of each of 148 GIFs of 9,000 frames, 20 MB",
     lambda target: target.post_files([files.gif_of_patches(300, 9_000)] * 148, "?frames=2", name="x.gif")),
    ("all-frames-of-gifs", "All frames of four GIFs of 2000 × 2000 pixels and 240 frames",
     lambda target: target.post_files([files.gif_of_patches(2_000, 240)] * 4, ALL_FRAMES, name="x.gif")),
    ("all-frames-of-many-gifs", "All frames of a thousand GIFs of 7000 × 7000 pixels and one frame",
     lambda target: target.post_files([files.gif_of_patches(7_000, 1)] * 1_000, ALL_FRAMES, name="x.gif")),
    ("black-videos", "All frames of six black 4K videos of 150 frames",
     lambda target: target.post_files([files.black_video(3_840, 2_160, 150)] * 6, "?frames=all&top_k=1", name="x.mp4")),
    ("two-frames-of-black-videos", "Two frames of each of six black 4K videos of 1,000 frames",
     lambda target: target.post_files([files.black_video(3_840, 2_160, 1_000)] * 6, "?frames=2", name="x.mp4")),
)
# fmt: on
