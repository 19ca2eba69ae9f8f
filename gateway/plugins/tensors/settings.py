"""The settings of models that take tensors, and the file that says how images become their input."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from gateway.errors import UserError
from gateway.ingest.resizing import INTERPOLATIONS, Resize, TensorInput
from gateway.settings import DecodeMode, Section, Settings, variable
from gateway.values.labels import LabelsError, read_labels
from gateway.values.text_files import read_text
from gateway.values.validation import fault

if TYPE_CHECKING:
    from gateway.plugins.tensors.tensor_codec import TensorModel

MOST_BYTES = 2**20
MAX_SIDE = 4_096
AS_LIST = BeforeValidator(lambda value: [value] if isinstance(value, int) else value)
Sides = Annotated[list[Annotated[int, Field(ge=1, le=MAX_SIDE)]], AS_LIST, Field(min_length=1, max_length=2)]
Colours = Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=3, max_length=3)]


class ModelFileError(UserError):
    """The file cannot be read, or has contents that are not understood."""


class Entry(BaseModel):
    """The table of one model, with the names of a preprocessor's parameters in config.pbtxt."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    resize_size: Sides
    crop_size: Sides
    crop_rounding: Literal["even", "floor"] = "even"
    interpolation: str = "bilinear"
    mean: Colours | None = None
    std: Colours | None = None
    datatype: Literal["fp32", "fp16", "uint8"] = "fp32"
    layout: Literal["nchw", "nhwc"] = "nchw"
    channels: Literal["rgb", "bgr"] = "rgb"
    decode: Literal["exact", "fast"] = "exact"
    scores: Literal["none", "softmax", "sigmoid"] = "none"
    labels: str = ""
    input: str = ""
    output: str = ""
    embeddings: str = ""

    @model_validator(mode="after")
    def _is_consistent(self) -> "Entry":
        if self.interpolation not in INTERPOLATIONS:
            raise ValueError(f"interpolation must be one of {', '.join(sorted(INTERPOLATIONS))}")
        height, width = (self.resize_size * 2)[:2]
        if (self.crop_size * 2)[0] > height or (self.crop_size * 2)[1] > width:
            raise ValueError("crop_size is larger than resize_size: the crop would have black borders")
        if self.datatype == "uint8":
            if self.mean is not None or self.std is not None:
                raise ValueError("uint8 is not normalised here: leave out mean and std")
        elif self.mean is None or self.std is None:
            raise ValueError(f"{self.datatype} needs mean and std of red, green and blue, on a scale from 0 to 1")
        elif not all(self.std):
            raise ValueError("std has a 0, and pixels are divided by it")
        return self

    def model(self, folder: Path) -> "TensorModel":
        """The model; its labels are in a file below `folder`. Raises LabelsError."""
        from gateway.plugins.tensors.tensor_codec import TensorModel

        height, width = (self.crop_size * 2)[:2]
        resize = Resize(tuple(self.resize_size), self.interpolation, fast=self.decode == "fast")
        mean, std = tuple(self.mean or (0.0,) * 3), tuple(self.std or (1.0,) * 3)
        order = self.datatype, self.layout, self.channels
        tensor = TensorInput(resize, (height, width), mean, std, *order, self.crop_rounding)
        return TensorModel(
            tensor,
            activation=self.scores,
            labels=read_labels(folder / self.labels) if self.labels else (),
            input=self.input,
            output=self.output,
            embeddings=self.embeddings,
        )


class ModelFile(BaseModel):
    """The whole file: a table for each model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    models: Annotated[dict[str, Entry], Field(min_length=1)]


def read_models(path: Path) -> "Mapping[str, TensorModel]":
    """The models of a file, by their names in Triton; raises ModelFileError."""
    try:
        file = ModelFile.model_validate(tomllib.loads(read_text(path, max_bytes=MOST_BYTES)))
    except (OSError, tomllib.TOMLDecodeError) as exc:
        raise ModelFileError(f"{path}: {getattr(exc, 'strerror', None) or exc}") from exc
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ModelFileError(f"{path}: {place}: {fault(first)}") from exc
    models = {}
    for name, entry in file.models.items():
        try:
            models[name] = entry.model(path.parent)
        except LabelsError as exc:
            raise ModelFileError(f"{path}: models.{name}.labels: {entry.labels}: {exc}") from exc
    return models


class TensorSettings(Section):
    """Models of Triton that take tensors."""

    tensor_models_file: Path | None = None
    """TOML file that makes images the input of models without a preprocessor (docs/guides/existing-triton.md)."""

    def faults(self) -> Sequence[str]:
        """The file must be readable, and the gateway must be allowed to decode."""
        if self.tensor_models_file is None:
            return []
        name = variable("tensor_models_file")
        if Settings.of(self).decode is DecodeMode.NEVER:
            return [f"{variable('decode')}=never contradicts {name}: these models need the gateway's decoders"]
        try:
            read_models(self.tensor_models_file)
        except ModelFileError as exc:
            return [f"{name}: {exc}"]
        return []

    def tensor_models(self) -> "Mapping[str, TensorModel]":
        """The models of the file; raises ModelFileError."""
        return {} if self.tensor_models_file is None else read_models(self.tensor_models_file)
