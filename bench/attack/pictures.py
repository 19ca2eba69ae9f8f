"""Pictures that cost more than they say."""

from bench.attack import files
from bench.attack.target import Attack, Target, attacks_of


def jpeg_of_many_scans(target: Target) -> str:
    """A progressive JPEG of 98 kB, 2000 × 2000 pixels and 6,000 scans."""
    return target.post_files([files.progressive_jpeg_of_many_scans(2_000, 6_000)])


def small_jpeg_of_many_scans(target: Target) -> str:
    """A progressive JPEG of 64 × 64 pixels, and scans up to 19 MB."""
    return target.post_files([files.progressive_jpeg_of_many_scans(64, target.nbytes // 20)])


def large_jpeg_of_some_scans(target: Target) -> str:
    """A progressive JPEG of 7000 × 7000 pixels and 100 scans."""
    return target.post_files([files.progressive_jpeg_of_many_scans(7_000, 100)])


def many_large_progressive_jpegs(target: Target) -> str:
    """Twenty progressive JPEGs of 12 megapixels."""
    return target.post_files([files.progressive_jpeg(4_000, 3_000)] * 20, "?timeout=60")


def png_with_texts(target: Target) -> str:
    """A PNG of 8 × 8 pixels with 36 compressed texts, 293 kB."""
    return target.post_files([files.png_with_texts(36)], name="x.png")


def png_with_many_texts(target: Target) -> str:
    """The same with 900 texts, 7 MB."""
    return target.post_files([files.png_with_texts(900)], name="x.png")


def png_of_49_megapixels(target: Target) -> str:
    """A black PNG of 7000 × 7000 pixels, one bit each."""
    return target.post_files([files.png(7_000, 7_000, bits=1, colour=0)], name="x.png")


def tiff_of_two_sizes(target: Target) -> str:
    """A TIFF whose size is 12000 × 12000 as SLONG, and then 64 × 64 as LONG."""
    return target.post_files([files.tiff_of_two_sizes(12_000, 64)], name="x.tiff")


def tiff_in_a_circle(target: Target) -> str:
    """A TIFF whose last directory leads back to the first, 19 MB."""
    return target.post_files([files.tiff_that_bites_its_tail(target.nbytes * 19 // 20)], name="x.tiff")


def tiff_that_bites_its_tail(target: Target) -> str:
    """A TIFF whose directory leads to itself, many times over in one request."""
    return target.post_files([files.tiff_that_bites_its_tail(48_000)] * (target.nbytes // 50_000), name="x.tiff")


def avif_of_another_size(target: Target) -> str:
    """An AVIF whose container says 64 × 64, and whose frame has 6000 × 6000."""
    return target.post_files([files.avif_of_another_size(6_000, 64)], name="x.avif")


def avif_of_many_items(target: Target) -> str:
    """An AVIF that lists two million items without a place, 19 MB."""
    return target.post_files([files.avif_of_many_items(target.nbytes * 19 // 200)], name="x.avif")


def heic_of_headers(target: Target) -> str:
    """A HEIC of 10,000 pictures whose shared header is 5 kB of zeros."""
    return target.post_files([files.heic_of_headers(10_000, 1)], name="x.heic")


def heic_of_many_headers(target: Target) -> str:
    """A HEIC of 3,000 pictures with a header of zeros each, 15 MB."""
    return target.post_files([files.heic_of_headers(3_000, 3_000)], name="x.heic")


def jpeg2000_of_channels(target: Target) -> str:
    """A JPEG 2000 whose list of channels has 19 MB."""
    return target.post_files([files.jpeg2000_of_channels(target.nbytes * 19 // 20)], name="x.jp2")


def heic_of_another_size(target: Target) -> str:
    """A HEIC whose container says 64 × 64, and whose picture has 4000 × 4000."""
    return target.post_files([files.heic_of_another_size(4_000, 64)], name="x.heic")


def jpeg2000_of_49_megapixels(target: Target) -> str:
    """A JPEG 2000 of 7000 × 7000 pixels in 196 tiles."""
    return target.post_files([files.jpeg2000(7_000, 500)], name="x.jp2")


def gif_of_many_frames(target: Target) -> str:
    """A GIF of 3000 × 3000 pixels and 50 frames."""
    return target.post_files([files.gif_of_frames(3_000, 50)], name="x.gif")


def frames_of_a_large_gif(target: Target) -> str:
    """The same, of which all frames are asked for."""
    return target.post_files([files.gif_of_frames(3_000, 50)], "?frames=all&top_k=1", name="x.gif")


def frames_without_number(target: Target) -> str:
    """A GIF of one pixel and a million frames, 15 MB, of which one frame is asked for."""
    return target.post_files([files.gif_of_pixels(1_000_000)], "?frames=1", name="x.gif")


def promised_frames(target: Target) -> str:
    """A thousand APNGs of two frames that tell of a billion, of which all are asked for."""
    return target.post_files([files.apng_that_promises(10**9)] * 1_000, "?frames=all", name="x.png")


def noise_like_videos(target: Target) -> str:
    """Twenty files of a megabyte that begin like videos, of which all frames are asked for."""
    middle = bytes(range(256)) * (target.nbytes // 21 // 256)
    begins = (b"\x1aE\xdf\xa3", b"\0\0\0\x18ftypisom", b"RIFF\0\0\0\0AVI LIST", b"\0\0\0\0moov")
    return target.post_files([begin + middle for begin in begins] * 5, "?frames=all", name="x.mp4")


def webp_of_49_megapixels(target: Target) -> str:
    """A lossless WebP of 7000 × 7000 pixels."""
    return target.post_files([files.webp_lossless(7_000, 7_000)], name="x.webp")


def noise(target: Target) -> str:
    """Twenty files of a megabyte, each beginning like a format and ending like it."""
    ends = {b"\xff\xd8\xff\xe0": b"\xff\xd9", b"GIF89a": b";", b"II*\0\x08\0\0\0": b"\0", b"BM": b"\0"}
    middle = bytes(range(256)) * (target.nbytes // 21 // 256)
    return target.post_files([begin + middle + end for begin, end in ends.items()] * 5)


ATTACKS: list[Attack] = attacks_of(
    jpeg_of_many_scans,
    small_jpeg_of_many_scans,
    large_jpeg_of_some_scans,
    many_large_progressive_jpegs,
    png_with_texts,
    png_with_many_texts,
    png_of_49_megapixels,
    tiff_of_two_sizes,
    tiff_in_a_circle,
    tiff_that_bites_its_tail,
    avif_of_another_size,
    avif_of_many_items,
    heic_of_headers,
    heic_of_many_headers,
    jpeg2000_of_channels,
    heic_of_another_size,
    jpeg2000_of_49_megapixels,
    gif_of_many_frames,
    frames_of_a_large_gif,
    frames_without_number,
    promised_frames,
    noise_like_videos,
    webp_of_49_megapixels,
    noise,
)
