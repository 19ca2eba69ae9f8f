"""Requests of many files, each of which costs as much as a file may."""

import contextlib
import threading
import time

from bench.attack import files
from bench.attack.target import Attack, Target, attacks_of

BESIDE_SECONDS = 4.0


def black_pngs(target: Target) -> str:
    """150 black PNGs of 49 megapixels, one bit each: 0.9 MB."""
    return target.post_files([files.black_png(7_000)] * 150, "?timeout=100", name="x.png")


def a_thousand_black_pngs(target: Target) -> str:
    """A thousand of them, 6 MB."""
    return target.post_files([files.black_png(7_000)] * 1_000, "?timeout=100", name="x.png")


def black_pngs_as_lines(target: Target) -> str:
    """A thousand of them, answered line by line."""
    return target.post_files([files.black_png(7_000)] * 1_000, "?timeout=100", "x.png", "Accept: application/x-ndjson")


def two_frames_of_long_gifs(target: Target) -> str:
    """Four GIFs of 9,000 frames, of which two each are asked for."""
    return target.post_files([files.gif_of_patches(300, 9_000)] * 4, "?frames=2", name="x.gif")


def two_frames_of_long_large_gifs(target: Target) -> str:
    """Four GIFs of 2000 × 2000 pixels and 9,000 frames, of which two each are asked for."""
    return target.post_files([files.gif_of_patches(2_000, 9_000)] * 4, "?frames=2", name="x.gif")


def two_frames_of_many_long_gifs(target: Target) -> str:
    """148 GIFs of 9,000 frames, 20 MB, of which two each are asked for."""
    return target.post_files([files.gif_of_patches(300, 9_000)] * 148, "?frames=2", name="x.gif")


def all_frames_of_gifs(target: Target) -> str:
    """Four GIFs of 2000 × 2000 pixels and 240 frames, of which all are asked for."""
    return target.post_files([files.gif_of_patches(2_000, 240)] * 4, "?frames=all&top_k=1&timeout=100", name="x.gif")


def all_frames_of_many_gifs(target: Target) -> str:
    """A thousand GIFs of 7000 × 7000 pixels and one frame, of which all are asked for."""
    return target.post_files([files.gif_of_patches(7_000, 1)] * 1_000, "?frames=all&top_k=1&timeout=100", name="x.gif")


def black_videos(target: Target) -> str:
    """Six black 4K videos of 150 frames, of which all are asked for."""
    return target.post_files([files.black_video(3_840, 2_160, 150)] * 6, "?frames=all&top_k=1", name="x.mp4")


def two_frames_of_black_videos(target: Target) -> str:
    """Six black 4K videos of 1,000 frames, of which two each are asked for."""
    return target.post_files([files.black_video(3_840, 2_160, 1_000)] * 6, "?frames=2", name="x.mp4")


def photos_of_50_megapixels(target: Target) -> str:
    """As many JPEGs of 49 megapixels as fit, as a camera takes them, on four connections for four seconds."""
    photo = files.large_photo(7_000, 7_000)
    ends = time.monotonic() + BESIDE_SECONDS
    answers: list[str] = []

    def send() -> None:
        while time.monotonic() < ends:
            with contextlib.suppress(OSError):
                answers.append(target.post_files([photo] * max(1, target.nbytes // len(photo) // 4)))

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ", ".join(sorted(set(answers)))


ATTACKS: list[Attack] = attacks_of(
    black_pngs,
    a_thousand_black_pngs,
    black_pngs_as_lines,
    two_frames_of_long_gifs,
    two_frames_of_long_large_gifs,
    two_frames_of_many_long_gifs,
    all_frames_of_gifs,
    all_frames_of_many_gifs,
    black_videos,
    two_frames_of_black_videos,
    photos_of_50_megapixels,
    requests={"photos_of_50_megapixels": 4},
)
