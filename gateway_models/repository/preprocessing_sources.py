"""Reads a model's preprocessing from Hugging Face's file, torchvision's weights, or options."""

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from gateway.ingest.resizing import EVEN, FLOOR
from gateway.values.text_files import read_text
from gateway_models.repository.preprocessing import AS_PIXELS, Preprocessing, PreprocessingError, whole

SQUARED = {"ViT", "DeiT", "Beit", "Swin"}
"""Hugging Face processors for which one number means height and width; for others it is the shorter side."""
OTHER_STEPS = {"Levit", "Perceiver", "TimmWrapper"}
"""Hugging Face processors with steps that their files do not describe."""
UNDERSTOOD = frozenset(
    {"do_resize", "size", "resample", "do_center_crop", "crop_size", "do_rescale", "rescale_factor"}
    | {"do_normalize", "image_mean", "image_std"}
)
"""Keys of Hugging Face's file that are read."""
WITHOUT_EFFECT = frozenset(
    {"image_processor_type", "feature_extractor_type", "processor_class", "auto_map", "_valid_processor_keys"}
    | {"do_convert_rgb", "do_reduce_labels", "reduce_labels", "default_to_square", "data_format", "input_data_format"}
    | {"return_tensors", "device", "disable_grouping", "model_input_names"}
)
"""Keys that do not change how an image in RGB is prepared. Any other key with a value is refused by its name."""
FIELDS = tuple(field.name for field in fields(Preprocessing))
MAX_JSON_BYTES = 64 * 2**20
"""The size limit of a model's JSON file; the largest weight indexes have a few megabytes."""
PILLOW_RESAMPLING = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""The names of PIL.Image.Resampling by number, as used in Hugging Face's preprocessor_config.json."""


def from_file(path: Path) -> Preprocessing:
    """Read Hugging Face's preprocessor_config.json; raises PreprocessingError."""
    values = _values(path)
    try:
        return _from_hugging_face(values)
    except (PreprocessingError, KeyError, IndexError, TypeError, ValueError) as exc:
        raise PreprocessingError(f"{path}: {exc}") from exc


def processor_in(path: Path) -> str:
    """The text of transformers' processor in a JSON file."""
    return json.dumps(_values(path))


def _values(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(read_text(path, max_bytes=MAX_JSON_BYTES))
    except (OSError, ValueError, RecursionError) as exc:
        raise PreprocessingError(f"cannot read {path} as JSON: {exc}") from exc
    if not isinstance(values, dict):
        raise PreprocessingError(f"{path} does not contain a JSON object")
    # transformers 5 may write the processor into processor_config.json.
    return values["image_processor"] if isinstance(values.get("image_processor"), dict) else values


def from_options(
    given: Mapping[str, Any], *, like: str | None, file: Preprocessing | None, pixels: bool, gray: bool
) -> Preprocessing | None:
    """The preprocessing that options describe; None if there is only `like` or nothing. Raises PreprocessingError.

    `given` has the fields of Preprocessing by name; `file` was read from --preprocessing. With `pixels`, --mean and
    --std may be left out; with `gray`, they may be one number each.
    """
    if pixels and not given.keys().isdisjoint(AS_PIXELS):
        raise PreprocessingError(
            "--pixels leaves pixels as they are, and --mean and --std normalise them: use one or the other"
        )
    flags = [f"--{name.removesuffix('_size')}" for name in FIELDS if name in given]
    ways = [*(["--like"] if like else []), *(["--preprocessing"] if file else []), *flags[:1]]
    if len(ways) > 1:
        raise PreprocessingError(
            f"{' and '.join(ways)} both describe how images were prepared in training: use one of them"
        )
    if not given:
        return file
    values = {**(AS_PIXELS if pixels else {}), **given}
    missing = [f"--{name.removesuffix('_size')}" for name in ("crop_size", *AS_PIXELS) if name not in values]
    if missing:
        raise PreprocessingError(
            f"{', '.join(flags)} cannot fully describe how images were prepared in training: add {', '.join(missing)}"
        )
    for name in AS_PIXELS:
        if gray and len(values[name]) == 1:
            values[name] *= 3
    return Preprocessing(**{"resize_size": (values["crop_size"],), "interpolation": "bilinear", **values})


def from_weights(name: str) -> Preprocessing:
    """The preprocessing of torchvision weights, such as ResNet50_Weights.IMAGENET1K_V2, in their evaluation."""
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
    """The torchvision weights of a name; raises PreprocessingError."""
    from torchvision.models import get_weight

    try:
        return get_weight(name)
    except (ValueError, AttributeError, KeyError) as exc:
        raise PreprocessingError(
            f"torchvision has no weights {name!r}: one is ResNet50_Weights.IMAGENET1K_V2, and "
            "list(torchvision.models.get_model_weights(ARCH)) are those of an architecture"
        ) from exc


def _from_hugging_face(values: Mapping[str, Any]) -> Preprocessing:
    """Read https://huggingface.co/docs/transformers/main_classes/image_processor files for image classification."""
    processor = str(values.get("image_processor_type") or values.get("feature_extractor_type") or "")
    family = re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", processor)
    known = UNDERSTOOD | WITHOUT_EFFECT | ({"crop_pct"} if family == "ConvNext" else set())
    others = [key for key, value in values.items() if key not in known and value not in (None, False)]
    if family in OTHER_STEPS or others:
        reason = f"{others[0]} of the processor" if others else processor
        raise PreprocessingError(
            f"{reason} is not supported: use --resize, --crop, --mean, --std and --interpolation if images can be "
            "prepared by these"
        )
    if not values.get("do_resize", True) or not values.get("do_normalize"):
        raise PreprocessingError("images are resized and normalised here: do_resize and do_normalize must be true")
    if values.get("resample") is None:
        raise PreprocessingError("resample is missing, whose default differs between processors: add its number")
    size = values.get("size", {})
    if isinstance(size, int):
        size = {"height": size, "width": size} if family in SQUARED else {"shortest_edge": size}
    if "shortest_edge" in size:
        resize: tuple[int, ...] = (int(size["shortest_edge"]),)
    elif {"height", "width"} <= set(size):
        resize = (int(size["height"]), int(size["width"]))
    else:
        raise PreprocessingError("size has neither shortest_edge nor height and width")
    is_cropped = bool(values.get("do_center_crop"))
    if family == "ConvNext":
        # ConvNextImageProcessor.resize: from 384 pixels the whole image, below a crop of it.
        (side,) = resize[:1]
        crop: Any = (side,)
        is_cropped = side < 384
        resize = (int(side / float(values.get("crop_pct") or 224 / 256)),) if is_cropped else (side, side)
    elif is_cropped:
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
        interpolation=PILLOW_RESAMPLING[int(values["resample"])],
        mean=_three(values["image_mean"]),
        std=_three(values.get("image_std", [])),
        crop_rounding=FLOOR if is_cropped else EVEN,
    )


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _side(value: object) -> int:
    sides = [whole(side) for side in _list(value)]
    if len(set(sides)) != 1:
        raise PreprocessingError(f"the crop is {','.join(map(str, sides))}; only squares are served")
    return sides[0]


def _three(value: object) -> tuple[float, ...]:
    # The result may have any length: Preprocessing checks that there are three.
    return tuple(float(part) for part in _list(value))
