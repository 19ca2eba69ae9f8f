"""A model's preprocessing, and the equal torchvision transforms."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict

from gateway.errors import UserError
from gateway.ingest.resizing import EVEN, PILLOW, ROUNDINGS, TORCH
from gateway_models.repository.option import IMAGES, Option

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

MAX_SIDE = 4096
AS_PIXELS = {"mean": (0.0,) * 3, "std": (1 / 255,) * 3}
"""The mean and std that leave pixels as they are, on a scale from 0 to 255."""
INTERPOLATIONS = ("nearest", "nearest-exact", "bilinear", "bicubic", "box", "hamming", "lanczos")


class PreprocessingError(UserError):
    """The description of a model's preprocessing is incomplete or invalid."""


def numbers(text: str) -> tuple[float, ...]:
    """The numbers in text such as 0.485,0.456,0.406; raises PreprocessingError."""
    try:
        return tuple(float(part) for part in text.replace("x", ",").split(","))
    except ValueError as exc:
        raise PreprocessingError(f"{text!r} must be numbers separated by commas") from exc


def whole(value: Any) -> int:  # noqa: ANN401  # a value of a user's file
    """A number of pixels as int; raises PreprocessingError for fractions instead of truncating them."""
    if not float(value).is_integer():
        raise PreprocessingError(f"{value} is not a whole number of pixels")
    return int(value)


def _sides(text: str) -> tuple[int, ...]:
    return tuple(whole(side) for side in numbers(text))


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """The preprocessing that a model needs; mean and std of RGB on a scale from 0 to 1.

    `resize_size` is height and width in pixels, or one number for the shorter side; `crop_size` is the side of the
    centre square; `resize_library` is pillow or torch; `crop_rounding`, of half of the crop's margin, is even, as in
    torchvision and timm, or floor, as in transformers. Raises PreprocessingError for invalid values.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    resize_size: Annotated[
        tuple[int, ...],
        Option("Shorter side, or height,width; by default the crop's.", IMAGES, "--resize", str, _sides),
    ]
    crop_size: Annotated[int, Option("Side of the centre crop.", IMAGES, "--crop")]
    interpolation: Annotated[str, Option("bilinear (default), bicubic, …", IMAGES)]
    mean: Annotated[tuple[float, ...], Option("R,G,B on a scale from 0 to 1.", IMAGES, type=str, read=numbers)]
    std: Annotated[tuple[float, ...], Option("R,G,B on a scale from 0 to 1.", IMAGES, type=str, read=numbers)]
    resize_library: str = PILLOW
    crop_rounding: str = EVEN

    def __post_init__(self) -> None:
        if len(self.resize_size) not in {1, 2}:
            raise PreprocessingError(
                "the resize must be one number, for the shorter side, or two, for height and width"
            )
        if not all(0 < side <= MAX_SIDE for side in (self.crop_size, *self.resize_size)):
            raise PreprocessingError(
                f"resize to {_text(self.resize_size)} and crop {self.crop_size}: a side is 1 to {MAX_SIDE} pixels"
            )
        if self.crop_size > min(self.resize_size):
            raise PreprocessingError(
                f"a crop of {self.crop_size} out of a resize to {_text(self.resize_size)} would have black borders"
            )
        if self.interpolation not in INTERPOLATIONS:
            raise PreprocessingError(
                f"{self.interpolation!r} is not an interpolation; use one of {', '.join(INTERPOLATIONS)}"
            )
        if self.resize_library not in {PILLOW, TORCH}:
            raise PreprocessingError(
                f"{self.resize_library!r} is not a resize library; use pillow, for the pixels of the installed Pillow, "
                "or torch"
            )
        if self.crop_rounding not in ROUNDINGS:
            raise PreprocessingError(f"{self.crop_rounding!r} is not a crop_rounding; use even or floor")
        for name in ("mean", "std"):
            values = getattr(self, name)
            if len(values) != 3:
                given = f"{len(values)} number{'s' * (len(values) != 1)}"
                raise PreprocessingError(f"{name} has {given} but needs three: red, green, blue")
            if not all(map(math.isfinite, values)):
                raise PreprocessingError(f"{name} is {_text(values)}, but must be three numbers")
            if name == "std" and not all(values):
                raise PreprocessingError(f"std is {_text(values)}, but pixels are divided by it: none may be 0")
            if not all(0 <= value <= 1 for value in values):
                raise PreprocessingError(
                    f"{name} is {_text(values)}, but must be between 0 and 1: divide 0–255 values by 255"
                )

    def parameters(self) -> dict[str, str]:
        """The fields as the parameters of the preprocessor's config.pbtxt."""
        return {name: _text(value) for name, value in asdict(self).items()}

    @property
    def gives_pixels(self) -> bool:
        """Whether the network gets unnormalised pixels, on a scale from 0 to 255."""
        return not any(self.mean) and all(abs(255 * std - 1) < 1e-6 for std in self.std)

    @property
    def is_gray(self) -> bool:
        """Whether all channels have the same mean and std, as for gray images."""
        return len(set(self.mean)) == len(set(self.std)) == 1

    def differences(self, given: Mapping[str, str]) -> list[str]:
        """The preprocessor parameters in `given` that differ, as messages that name the parameter.

        The resize library is not compared: it is chosen for serving.
        """
        return [
            f"parameter {name} is {given.get(name)!r} and should be {value!r}"
            for name, value in self.parameters().items()
            if name != "resize_library" and _parts(given.get(name, "")) != _parts(value)
        ]

    def described(self) -> str:
        """A line for tables."""
        sides = "×".join(map(str, self.resize_size))
        resize = sides if len(self.resize_size) == 2 else f"shorter side {sides}"
        values = "pixels of 0 to 255" if self.gives_pixels else f"mean {_text(self.mean)}, std {_text(self.std)}"
        return (
            f"resize {resize} {self.interpolation}, crop {self.crop_size}, {values}"
            f"{'' if self.crop_rounding == EVEN else ' rounded as in transformers'}"
            f"{'' if self.resize_library == PILLOW else f', resized by {self.resize_library}'}"
        )


def reference_transforms(preprocessing: Preprocessing) -> "Callable[[Image], Tensor]":
    """The transforms of torchvision, as in training and evaluation: a PIL image in RGB → fp32 [3, crop, crop]."""
    import torch
    from torchvision.transforms import v2

    def floored(image: "Image") -> "Image":
        """The centre crop of transformers."""
        side = preprocessing.crop_size
        left, top = ((length - side) // 2 for length in image.size)
        return image.crop((left, top, left + side, top + side))

    compose: Callable[[Image], Tensor] = v2.Compose(
        [
            v2.Resize(
                list(preprocessing.resize_size), v2.InterpolationMode(preprocessing.interpolation), antialias=True
            ),
            v2.CenterCrop(preprocessing.crop_size) if preprocessing.crop_rounding == EVEN else floored,
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(list(preprocessing.mean), list(preprocessing.std)),
        ]
    )
    return compose


def _text(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _parts(text: str) -> list[float | str]:
    """A parameter's parts, with numbers parsed so that notations compare equal."""
    return [_number(part.strip()) for part in text.split(",")]


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
