"""`python -m bench.resize`: the resize kernel beside Pillow and torch on one core, as shares of Pillow's time.

They run in turns, and the least time of each counts. The bytes are compared first.
"""

import ctypes
import statistics
import time
from collections.abc import Callable
from typing import Annotated

import exact_resize
import numpy as np
import PIL
import torch
import typer
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from bench.output import table

Pixels = NDArray[np.uint8]
CROP = 224
CASES = {
    "600 × 400 → 224 × 224": ((400, 600), (224, 224)),
    "600 × 400 → 384 × 256": ((400, 600), (256, 384)),
    "4000 × 3000 → 341 × 256": ((3000, 4000), (256, 341)),
    "3000 × 4000 → 256 × 341": ((4000, 3000), (341, 256)),
    "2000 × 6000 → 256 × 768": ((6000, 2000), (768, 256)),
}
"""Height and width before and after. All but two have 12 megapixels; the last goes vertically first since Pillow 13."""
MAJOR, MINOR = map(int, PIL.__version__.split(".")[:2])
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT_BYTES = 2**27


def ways(pixels: Pixels, size: tuple[int, int], kernel: str) -> dict[str, Callable[[], Pixels]]:
    """Each way to resize pixels to a size; the others are compared with the first."""
    corner = ((size[0] - CROP) // 2, (size[1] - CROP) // 2)
    whole, middle = np.empty((*size, 3), np.uint8), np.empty((CROP, CROP, 3), np.uint8)
    channels_first = torch.from_numpy(pixels).permute(2, 0, 1)
    mode = InterpolationMode(kernel)

    def exact(target: Pixels, corner: tuple[int, int] = (0, 0), by: str = "") -> Pixels:
        exact_resize.resize(pixels.data, target.data, size, filter=kernel, corner=corner, pillow=(MAJOR, MINOR), by=by)
        return target

    return {
        "Pillow": lambda: np.asarray(Image.fromarray(pixels).resize(size[::-1], Image.Resampling[kernel.upper()])),
        "kernel": lambda: exact(whole),
        "middle only": lambda: exact(middle, corner),
        "portable": lambda: exact(whole, by="portable"),
        "torch": lambda: functional.resize(channels_first, list(size), mode, antialias=True).permute(1, 2, 0).numpy(),
    }


def least_milliseconds(ways: dict[str, Callable[[], Pixels]], rounds: int) -> dict[str, float]:
    """The least processor time of each way, over rounds that run each of them once."""
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            started = time.thread_time_ns()
            way()
            least[name] = min(least[name], (time.thread_time_ns() - started) / 1e6)
    return least


def differing(ways: dict[str, Callable[[], Pixels]]) -> dict[str, float]:
    """The share of a way's bytes that are not Pillow's, for those that resize the whole."""
    whole = ways["Pillow"]()
    found = {name: way() for name, way in ways.items()}
    return {name: float((pixels != whole).mean()) for name, pixels in found.items() if pixels.shape == whole.shape}


def main(
    rounds: Annotated[int, typer.Option(help="Measurements of each way.", min=1)] = 15,
) -> None:
    """Resize images by Pillow, the kernel and torch, and print the times as shares of Pillow's."""
    torch.set_num_threads(1)
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
    libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    generator = np.random.default_rng(0)
    rows, kernel_shares = [], []
    for title, (shape, size) in CASES.items():
        pixels = generator.integers(0, 256, (*shape, 3), np.uint8)
        for kernel in ("bilinear", "bicubic"):
            every = ways(pixels, size, kernel)
            unlike = differing(every)
            least = least_milliseconds(every, rounds if shape[0] < 1000 else max(3, rounds // 3))
            shares = {name: least[name] / least["Pillow"] for name in every}
            kernel_shares.append(shares["kernel"])
            texts = [f"{shares[name]:.2f}, {least[name]:.2f} ms" for name in every]
            rows.append([title, kernel, *texts, f"{unlike['kernel']:.2%}, {unlike['torch']:.2%}"])
    print(f"Pillow {PIL.__version__}, torch {torch.__version__}, exact_resize with {exact_resize.instructions()}\n")
    print(table(["image", "filter", *every, "bytes that differ: kernel, torch"], rows))
    print(f"the kernel takes {statistics.median(kernel_shares):.2f} of Pillow's time")


if __name__ == "__main__":
    typer.run(main)
