"""The settings of models that take tensors."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.plugins.tensors.model_file import ModelFileError, read_models
from gateway.settings import DecodeMode, Section, Settings, variable

if TYPE_CHECKING:
    from gateway.plugins.tensors.tensor_codec import TensorModel


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
