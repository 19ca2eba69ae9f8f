"""How a model wants its images: from a torchvision weights enum, from a file, or part by part."""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict

from gateway.errors import UserError
from gateway.repository.pillow_order import PILLOW, TORCH, ordered_resize, release_of

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

MAX_SIDE = 4096
SQUARED = {"ViT", "DeiT", "Beit", "Swin"}
"""Hugging Face's image processors to which one number means height and width; to others it is the shorter side."""
UNKNOWN_PROCESSORS = {
    "EfficientNet",
    "Levit",
    "Poolformer",
    "PoolFormer",
    "Perceiver",
    "TimmWrapper",
    "Glpn",
    "Bridgetower",
}
"""Those with steps that the preprocessor here does not have: offsets, crops by share."""
AS_PIXELS = {"mean": (0.0,) * 3, "std": (1 / 255,) * 3}
"""The mean and std that leave pixels as they are, on a scale from 0 to 255."""
INTERPOLATIONS = ("nearest", "nearest-exact", "bilinear", "bicubic", "box", "hamming", "lanczos")
PILLOW_RESAMPLING = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""PIL.Image.Resampling by number, as Hugging Face's preprocessor_config.json has it."""


class PreprocessingError(UserError):
    """What was said about a model's preprocessing is incomplete or cannot be right."""


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """How a model wants its images; mean and std of RGB on a scale from 0 to 1.

    `resize_size` is height and width in pixels, or one number for the shorter side; `crop_size` is the side of the
    square in the middle. `resize_library` is torch, pillow for whichever is installed, or a Pillow's release, such as
    pillow-12.1, where training's is known and another: see gateway.repository.pillow_order. Raises PreprocessingError
    where that cannot be.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    resize_size: tuple[int, ...]
    crop_size: int
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize_library: str = PILLOW

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
        if self.resize_library not in {PILLOW, TORCH} and release_of(self.resize_library) is None:
            raise PreprocessingError(
                f"{self.resize_library!r} is not a resize library; use pillow, torch, or a Pillow release: pillow-12.1"
            )
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
        """The same as texts, as the preprocessor's config.pbtxt has them."""
        return {name: _text(value) for name, value in asdict(self).items()}

    @property
    def gives_pixels(self) -> bool:
        """Whether the network gets the pixels themselves, on a scale from 0 to 255."""
        return not any(self.mean) and all(abs(255 * std - 1) < 1e-6 for std in self.std)

    @property
    def is_gray(self) -> bool:
        """Whether all channels are normalised alike, as those of a gray image."""
        return len(set(self.mean)) == len(set(self.std)) == 1

    def differences(self, given: Mapping[str, str]) -> list[str]:
        """What the preprocessor's parameters say otherwise, in words that name the parameter.

        Not of the resize's library, which is for who serves to choose.
        """
        return [
            f"parameter {name} is {given.get(name)!r} and should be {value!r}"
            for name, value in self.parameters().items()
            if name != "resize_library" and _parts(given.get(name, "")) != _parts(value)
        ]

    def described(self) -> str:
        """One line for people."""
        sides = "×".join(map(str, self.resize_size))
        resize = sides if len(self.resize_size) == 2 else f"shorter side {sides}"
        values = "pixels of 0 to 255" if self.gives_pixels else f"mean {_text(self.mean)}, std {_text(self.std)}"
        return (
            f"resize {resize} {self.interpolation}, crop {self.crop_size}, {values}"
            f"{'' if self.resize_library == PILLOW else f', resized by {self.resize_library}'}"
        )


def from_mapping(values: Mapping[str, Any]) -> Preprocessing:
    """Read what `asdict` gave; numbers and lists may stand where the dataclass has tuples."""
    known = {field.name for field in fields(Preprocessing)}
    unknown, missing = sorted(set(values) - known), sorted(known - set(values) - {"resize_library"})
    if unknown or missing:
        said = [
            f"{', '.join(names)} {word}"
            for names, word in ((unknown, "is not known"), (missing, "is missing"))
            if names
        ]
        raise PreprocessingError(f"preprocessing: {'; '.join(said)}")
    try:
        return Preprocessing(
            resize_size=tuple(whole(side) for side in _list(values["resize_size"])),
            crop_size=_side(values["crop_size"]),
            interpolation=str(values["interpolation"]),
            mean=_three(values["mean"]),
            std=_three(values["std"]),
            resize_library=str(values.get("resize_library", PILLOW)),
        )
    except (TypeError, ValueError) as exc:
        raise PreprocessingError(f"preprocessing: {exc}") from exc


def from_file(path: Path) -> Preprocessing:
    """Read a JSON file: the fields of Preprocessing, or Hugging Face's preprocessor_config.json."""
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as exc:
        raise PreprocessingError(f"cannot read {path} as JSON: {exc}") from exc
    if not isinstance(values, dict):
        raise PreprocessingError(f"{path} does not contain a JSON object")
    try:
        return _from_hugging_face(values) if "image_mean" in values else from_mapping(values)
    except (PreprocessingError, KeyError, IndexError, TypeError, ValueError) as exc:
        raise PreprocessingError(f"{path}: {exc}") from exc


def from_weights(name: str) -> Preprocessing:
    """What torchvision's weights of that name, such as ResNet50_Weights.IMAGENET1K_V2, were evaluated with."""
    transforms = weights_enum(name).transforms()
    try:
        return Preprocessing(
            resize_size=tuple(transforms.resize_size),
            crop_size=_side(transforms.crop_size),
            interpolation=transforms.interpolation.value,
            mean=_three(transforms.mean),
            std=_three(transforms.std),
        )
    except AttributeError as exc:
        raise PreprocessingError(f"{name} is not for image classification") from exc


def weights_enum(name: str) -> Any:  # noqa: ANN401  # torchvision is not typed
    """The torchvision weights of a name; raises PreprocessingError with names that are near."""
    import difflib

    from torchvision.models import get_model_weights, get_weight, list_models

    try:
        return get_weight(name)
    except (ValueError, AttributeError, KeyError) as exc:
        every = [str(weights) for model in list_models() for weights in get_model_weights(model)]
        # Where it is an architecture's name, those of that architecture.
        plain = name.lower().replace("_", "")
        alike = [each for each in every if each.lower().replace("_", "").startswith(f"{plain}weights.")]
        near = alike[:3] or difflib.get_close_matches(name, every, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "one is ResNet50_Weights.IMAGENET1K_V2"
        raise PreprocessingError(f"torchvision has no weights {name!r}: {hint}") from exc


def reference_transforms(preprocessing: Preprocessing) -> "Callable[[Image], Tensor]":
    """What torchvision makes of a PIL image, as in training and evaluation there: RGB → fp32 [3, crop, crop].

    The passes of the resize go in the order of the Pillow that `preprocessing` names.
    """
    import torch
    from torchvision.transforms import v2

    compose: Callable[[Image], Tensor] = v2.Compose(
        [
            ordered_resize(
                preprocessing.resize_size,
                v2.InterpolationMode(preprocessing.interpolation),
                release_of(preprocessing.resize_library),
            ),
            v2.CenterCrop(preprocessing.crop_size),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(list(preprocessing.mean), list(preprocessing.std)),
        ]
    )
    return compose


def numbers(text: str) -> tuple[float, ...]:
    """The numbers in text such as 0.485,0.456,0.406; raises PreprocessingError."""
    try:
        return tuple(float(part) for part in text.replace("x", ",").split(","))
    except ValueError as exc:
        raise PreprocessingError(f"{text!r} must be numbers separated by commas") from exc


def _from_hugging_face(values: Mapping[str, Any]) -> Preprocessing:
    """Read https://huggingface.co/docs/transformers/main_classes/image_processor files for image classification."""
    processor = str(values.get("image_processor_type") or values.get("feature_extractor_type") or "")
    family = re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", processor)
    if family in UNKNOWN_PROCESSORS:
        raise PreprocessingError(
            f"{processor} prepares images in a way of its own: use --resize, --crop, --mean, --std and --interpolation"
        )
    if not values.get("do_resize", True) or not values.get("do_normalize", True):
        raise PreprocessingError("images are resized and normalised here: do_resize and do_normalize must be true")
    size = values.get("size", {})
    if isinstance(size, int):
        size = {"height": size, "width": size} if family in SQUARED else {"shortest_edge": size}
    if "shortest_edge" in size:
        resize: tuple[int, ...] = (int(size["shortest_edge"]),)
    elif {"height", "width"} <= set(size):
        resize = (int(size["height"]), int(size["width"]))
    else:
        raise PreprocessingError("size has neither shortest_edge nor height and width")
    if family == "ConvNext":
        # ConvNextImageProcessor.resize: from 384 on the whole picture, below a part of it.
        (side,) = resize[:1]
        crop: Any = (side,)
        resize = (int(side / float(values.get("crop_pct") or 224 / 256)),) if side < 384 else (side, side)
    elif values.get("do_center_crop"):
        crop = values.get("crop_size", resize[0])
        crop = (crop["height"], crop["width"]) if isinstance(crop, Mapping) else (crop,)
    elif len(resize) == 2:
        crop = resize
    else:
        raise PreprocessingError(
            "shortest_edge without do_center_crop gives images of different sizes; a batch needs one size"
        )
    if abs(float(values.get("rescale_factor", 1 / 255)) - 1 / 255) > 1e-6 or not values.get("do_rescale", True):
        raise PreprocessingError("rescale_factor must be 1/255")
    return Preprocessing(
        resize_size=resize,
        crop_size=_side(crop),
        interpolation=PILLOW_RESAMPLING[int(values.get("resample", 2))],
        mean=_three(values["image_mean"]),
        std=_three(values.get("image_std", [])),
    )


def whole(value: Any) -> int:  # noqa: ANN401  # whatever stands in a file
    """A number of pixels; raises PreprocessingError where it is none, instead of cutting its fraction off."""
    if not float(value).is_integer():
        raise PreprocessingError(f"{value} is not a whole number of pixels")
    return int(value)


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _side(value: object) -> int:
    sides = [whole(side) for side in _list(value)]
    if len(set(sides)) != 1:
        raise PreprocessingError(f"the crop is {_text(tuple(sides))}; only squares are served")
    return sides[0]


def _three(value: object) -> tuple[float, ...]:
    # As many as there are: Preprocessing says what is wrong with another number of them.
    return tuple(float(part) for part in _list(value))


def _text(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _parts(text: str) -> list[float | str]:
    """A parameter's parts, comparable whatever way its numbers are written."""
    return [_number(part.strip()) for part in text.split(",")]


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
