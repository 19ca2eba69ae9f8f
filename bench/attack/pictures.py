"""Images that cost more than their size or their header suggests."""

from bench.attack import files
from bench.attack.target import Attacks, Target

ATTACKS = Attacks()


@ATTACKS.add()
def noise_like_videos(target: Target) -> str:
    """All frames of twenty files of a megabyte that begin like videos."""
    middle = bytes(range(256)) * (target.nbytes // 21 // 256)
    begins = (b"\x1aE\xdf\xa3", b"\0\0\0\x18ftypisom", b"RIFF\0\0\0\0AVI LIST", b"\0\0\0\0moov")
    return target.post_files([begin + middle for begin in begins] * 5, "?frames=all", name="x.mp4")


@ATTACKS.add()
def noise(target: Target) -> str:
    """Twenty files of a megabyte, each beginning like a format and ending like it."""
    ends = {b"\xff\xd8\xff\xe0": b"\xff\xd9", b"GIF89a": b";", b"II*\0\x08\0\0\0": b"\0", b"BM": b"\0"}
    middle = bytes(range(256)) * (target.nbytes // 21 // 256)
    return target.post_files([begin + middle + end for begin, end in ends.items()] * 5)


# fmt: off
ATTACKS.rows(
    ("jpeg-of-many-scans", "A progressive JPEG of 98 kB, 2000 × 2000 pixels and 6,000 scans",
     lambda target: target.post_files([files.progressive_jpeg_of_many_scans(2_000, 6_000)])),
    ("small-jpeg-of-many-scans", "A progressive JPEG of 64 × 64 pixels, and scans up to 19 MB",
     lambda target: target.post_files([files.progressive_jpeg_of_many_scans(64, target.nbytes // 20)])),
    ("large-jpeg-of-some-scans", "A progressive JPEG of 7000 × 7000 pixels and 100 scans",
     lambda target: target.post_files([files.progressive_jpeg_of_many_scans(7_000, 100)])),
    ("many-large-progressive-jpegs", "Twenty progressive JPEGs of 12 megapixels",
     lambda target: target.post_files([files.progressive_jpeg(4_000, 3_000)] * 20, "?timeout=60")),
    ("png-with-texts", "A PNG of 8 × 8 pixels with 36 compressed texts, 293 kB",
     lambda target: target.post_files([files.png_with_texts(36)], name="x.png")),
    ("png-with-many-texts", "A PNG of 8 × 8 pixels with 900 compressed texts, 7 MB",
     lambda target: target.post_files([files.png_with_texts(900)], name="x.png")),
    ("png-of-49-megapixels", "A black PNG of 7000 × 7000 pixels, one bit each",
     lambda target: target.post_files([files.black_png(7_000)], name="x.png")),
    ("tiff-of-two-sizes", "A TIFF whose size is 12000 × 12000 as SLONG, and then 64 × 64 as LONG",
     lambda target: target.post_files([files.tiff_of_two_sizes(12_000, 64)], name="x.tiff")),
    ("tiff-in-a-circle", "A TIFF whose last directory leads back to the first, 19 MB",
     lambda target: target.post_files([files.cyclic_tiff(target.nbytes * 19 // 20)], name="x.tiff")),
    ("tiff-that-bites-its-tail", "A TIFF whose directory leads to itself, many times over in one request",
     lambda target: target.post_files([files.cyclic_tiff(48_000)] * (target.nbytes // 50_000), name="x.tiff")),
    ("avif-of-another-size", "An AVIF whose container says 64 × 64, and whose frame has 6000 × 6000",
     lambda target: target.post_files([files.avif_of_another_size(6_000, 64)], name="x.avif")),
    ("avif-of-many-items", "An AVIF that lists two million items without extents, 19 MB",
     lambda target: target.post_files([files.avif_of_many_items(target.nbytes * 19 // 200)], name="x.avif")),
    ("heic-of-headers", "A HEIC of 10,000 images whose shared header is 5 kB of zeros",
     lambda target: target.post_files([files.heic_of_headers(10_000, 1)], name="x.heic")),
    ("heic-of-many-headers", "A HEIC of 3,000 images with a header of zeros each, 15 MB",
     lambda target: target.post_files([files.heic_of_headers(3_000, 3_000)], name="x.heic")),
    ("jpeg2000-of-channels", "A JPEG 2000 whose list of channels has 19 MB",
     lambda target: target.post_files([files.jpeg2000_of_channels(target.nbytes * 19 // 20)], name="x.jp2")),
    ("heic-of-another-size", "A HEIC whose container says 64 × 64, and whose image has 4000 × 4000",
     lambda target: target.post_files([files.heic_of_another_size(4_000, 64)], name="x.heic")),
    ("jpeg2000-of-49-megapixels", "A JPEG 2000 of 7000 × 7000 pixels in 196 tiles",
     lambda target: target.post_files([files.jpeg2000(7_000, 500)], name="x.jp2")),
    ("gif-of-many-frames", "A GIF of 3000 × 3000 pixels and 50 frames",
     lambda target: target.post_files([files.gif_of_frames(3_000, 50)], name="x.gif")),
    ("frames-of-a-large-gif", "All frames of a GIF of 3000 × 3000 pixels and 50 frames",
     lambda target: target.post_files([files.gif_of_frames(3_000, 50)], "?frames=all&top_k=1", name="x.gif")),
    ("frames-without-number", "One frame of a GIF of one pixel and a million frames, 15 MB",
     lambda target: target.post_files([files.gif_of_pixels(1_000_000)], "?frames=1", name="x.gif")),
    ("promised-frames", "All frames of a thousand APNGs of two frames whose headers declare a billion",
     lambda target: target.post_files([files.apng_that_promises(10**9)] * 1_000, "?frames=all", name="x.png")),
    ("webp-of-49-megapixels", "A lossless WebP of 7000 × 7000 pixels",
     lambda target: target.post_files([files.webp_lossless(7_000, 7_000)], name="x.webp")),
)
# fmt: on
