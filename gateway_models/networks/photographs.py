"""Photographs of the page as a network's input, to try and compare its answers."""

from collections.abc import Callable, Iterator
from importlib.resources import files

import torch
from PIL import Image, ImageOps
from torch import Tensor

from gateway_models.networks.adapted import PIXELS
from gateway_models.repository.preprocessing import Preprocessing, reference_transforms
from gateway_models.repository.spec import ImageTensor

PHOTOGRAPHS = ("cat.jpg", "coffee.jpg", "rocket.jpg")
NEARLY_ALL, NEARLY_EQUAL = 0.85, 0.01
"""The share of the views, and the largest difference of a score, of networks that may not see their images."""


def photographs() -> Iterator[Image.Image]:
    """18 views in RGB: each photograph, its mirror image, and its quarters."""
    for name in PHOTOGRAPHS:
        with files("gateway.plugins.page").joinpath("static", name).open("rb") as file, Image.open(file) as opened:
            photograph = opened.convert("RGB")
        yield photograph
        yield ImageOps.mirror(photograph)
        width, height = photograph.size
        for left in (0, width // 2):
            for top in (0, height // 2):
                yield photograph.crop((left, top, left + width // 2, top + height // 2))


def as_tensors(prepared: Preprocessing, tensor: ImageTensor) -> Tensor:
    """The views as a network's input: fp32 or uint8 [N, 3, side, side]."""
    transforms = reference_transforms(prepared)
    images = torch.stack([transforms(view) for view in photographs()])
    if tensor is not ImageTensor.UINT8:
        return images
    mean, std = (torch.tensor(values)[:, None, None] for values in (prepared.mean, prepared.std))
    return (images.mul(std).add(mean) * PIXELS).round().clamp(0, PIXELS).to(torch.uint8)


def alike(run: Callable[[Tensor], Tensor], prepared: Preprocessing) -> str:
    """A question, if a network gives nearly all photographs the same scores; else ""."""
    scores = run(as_tensors(prepared, ImageTensor.FP32))
    near = (scores - scores.median(dim=0).values).abs().amax(dim=1) <= NEARLY_EQUAL
    if scores.shape[1] < 2 or float(near.float().mean()) < NEARLY_ALL:
        return ""
    return (
        f"{int(near.sum())} of {len(scores)} photographs get the same scores, within {NEARLY_EQUAL:g}: are images "
        f"prepared as in training ({prepared.described()})? A network that scales or normalises images itself needs "
        "--pixels, or --mean 0,0,0 --std 1,1,1 if it takes values of 0 to 1. Or is it not trained yet?"
    )
