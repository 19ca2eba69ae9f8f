"""Images that cost more than their size or their header suggests, and requests with many of them."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

from bench import costly_files as files
from bench.attack.target import Target, cases, counted

CONNECTIONS, SECONDS = 4, 4.0
ALL_FRAMES = "?frames=all&top_k=1&timeout=100"
VIDEOS = (b"\x1aE\xdf\xa3", b"\0\0\0\x18ftypisom", b"RIFF\0\0\0\0AVI LIST", b"\0\0\0\0moov")
"""How videos of four formats begin."""
IMAGES = {b"\xff\xd8\xff\xe0": b"\xff\xd9", b"GIF89a": b";", b"II*\0\x08\0\0\0": b"\0", b"BM": b"\0"}
"""How images of four formats begin and end."""


def _noise(target: Target) -> bytes:
    return bytes(range(256)) * (target.nbytes // 21 // 256)


def _damaged(target: Target) -> str:
    whole = files.progressive_jpeg(400, 300)
    noises = (bytes((number * place) % 256 for place in range(2_000)) for number in range(50))
    return target.post_files([whole[:1_000] + noise + whole[3_000:] for noise in noises])


def _photos_of_50_megapixels(target: Target) -> str:
    photo = files.large_photo(7_000, 7_000)
    ends = time.monotonic() + SECONDS
    answers: list[str] = []

    def send() -> None:
        while time.monotonic() < ends:
            with contextlib.suppress(OSError):
                answers.append(target.post_files([photo] * max(1, target.nbytes // len(photo) // CONNECTIONS)))

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        for _ in range(CONNECTIONS):
            threads.submit(send)
    return counted(answers)


# fmt: off
CASES = cases(
    ("jpeg-of-many-scans", "A progressive JPEG of 98 kB, 2000 × 2000 pixels and 6,000 scans",
     lambda target: target.post_files([files.progressive_jpeg_of_many_scans(2_000, 6_000)])),
    ("small-jpeg-of-many-scans", "A progressive JPEG of 64 × 64 pixels, and scans up to 19 MB",
     lambda target: target.post_files([files.progressive_jpeg_of_many_scans(64, target.nbytes // 20)])),
    ("large-progressive-jpegs", "Twenty progressive JPEGs of 12 megapixels",
     lambda target: target.post_files([files.progressive_jpeg(4_000, 3_000)] * 20, "?timeout=60")),
    ("png-with-texts", "A PNG of 8 × 8 pixels with 36 compressed texts, 293 kB",
     lambda target: target.post_files([files.png_with_texts(36)], name="x.png")),
    ("png-with-many-texts", "A PNG of 8 × 8 pixels with 900 compressed texts, 7 MB",
     lambda target: target.post_files([files.png_with_texts(900)], name="x.png")),
    ("png-of-49-megapixels", "A black PNG of 7000 × 7000 pixels, one bit each",
     lambda target: target.post_files([files.black_png(7_000)], name="x.png")),
    ("jpeg2000-of-49-megapixels", "A JPEG 2000 of 7000 × 7000 pixels in 196 tiles",
     lambda target: target.post_files([files.jpeg2000(7_000, 500)], name="x.jp2")),
    ("webp-of-49-megapixels", "A lossless WebP of 7000 × 7000 pixels",
     lambda target: target.post_files([files.webp_lossless(7_000, 7_000)], name="x.webp")),
    ("gif-of-many-frames", "A GIF of 3000 × 3000 pixels and 50 frames",
     lambda target: target.post_files([files.gif_of_frames(3_000, 50)], name="x.gif")),
    ("frames-of-a-large-gif", "All frames of a GIF of 3000 × 3000 pixels and 50 frames",
     lambda target: target.post_files([files.gif_of_frames(3_000, 50)], "?frames=all&top_k=1", name="x.gif")),
    ("frames-without-number", "One frame of a GIF of one pixel and a million frames, 15 MB",
     lambda target: target.post_files([files.gif_of_patches(1, 1_000_000)], "?frames=1", name="x.gif")),
    ("noise-like-videos", "All frames of twenty files of a megabyte that begin like videos",
     lambda target: target.post_files([begin + _noise(target) for begin in VIDEOS] * 5, "?frames=all", name="x.mp4")),
    ("noise-like-images", "Twenty files of a megabyte, each beginning like a format and ending like it",
     lambda target: target.post_files([begin + _noise(target) + end for begin, end in IMAGES.items()] * 5)),
)
SUMS = cases(
    ("photos-of-50-megapixels",
     "As many JPEGs of 49 megapixels as fit, as a camera takes them, on four connections for four seconds",
     _photos_of_50_megapixels),
    ("a-thousand-black-pngs", "A thousand black PNGs of 49 megapixels, 6 MB",
     lambda target: target.post_files([files.black_png(7_000)] * 1_000, "?timeout=100", name="x.png")),
    ("black-pngs-as-lines", "A thousand black PNGs of 49 megapixels, answered as NDJSON",
     lambda target: target.post_files([files.black_png(7_000)] * 1_000, "?timeout=100", "x.png",
                                      "Accept: application/x-ndjson")),
    ("two-frames-of-long-gifs", "Two frames of each of 148 GIFs of 9,000 frames, 20 MB",
     lambda target: target.post_files([files.gif_of_patches(300, 9_000)] * 148, "?frames=2", name="x.gif")),
    ("all-frames-of-gifs", "All frames of four GIFs of 2000 × 2000 pixels and 240 frames",
     lambda target: target.post_files([files.gif_of_patches(2_000, 240)] * 4, ALL_FRAMES, name="x.gif")),
    ("all-frames-of-many-gifs", "All frames of a thousand GIFs of 7000 × 7000 pixels and one frame",
     lambda target: target.post_files([files.gif_of_patches(7_000, 1)] * 1_000, ALL_FRAMES, name="x.gif")),
    ("black-videos", "All frames of six black 4K videos of 150 frames",
     lambda target: target.post_files([files.black_video(3_840, 2_160, 150)] * 6, "?frames=all&top_k=1", name="x.mp4")),
    ("pngs-with-texts", "Twelve PNGs at once with texts that inflate to 1.6 GB each, of the size of one request",
     lambda target: target.post_files([files.png_with_texts(200)] * 12, name="x.png")),
    ("jpegs-of-many-scans", "Two hundred progressive JPEGs of 6,000 scans",
     lambda target: target.post_files([files.progressive_jpeg_of_many_scans(2_000, 6_000)] * 200, "?timeout=60")),
    ("damaged-images", "Fifty images with valid headers and endings, and noise between", _damaged),
)
# fmt: on
