"""Reading config.pbtxt."""

from collections.abc import Mapping
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

__all__ = ["ModelConfig", "ModelInstanceGroup", "parameters", "read_model_config", "read_model_configs", "steps"]


def read_model_config(path: Path) -> ModelConfig:
    """The model configuration in a config.pbtxt; raises OSError, or ValueError that names the file and the line."""
    try:
        return text_format.Parse(path.read_text(), ModelConfig())
    except text_format.ParseError as exc:
        raise ValueError(f"{path}: {exc}") from exc


def read_model_configs(repository: Path) -> dict[str, ModelConfig]:
    """The readable configurations of a model repository, by name; Triton reports the errors of the others."""
    configs = {}
    for path in sorted(repository.glob("*/config.pbtxt")):
        try:
            configs[path.parent.name] = read_model_config(path)
        except (OSError, ValueError):
            continue
    return configs


def parameters(config: ModelConfig) -> Mapping[str, str]:
    """The `parameters` of a model configuration as text."""
    return {name: parameter.string_value for name, parameter in config.parameters.items()}


def steps(config: ModelConfig) -> tuple[str, ...]:
    """The names of an ensemble's steps in order; () of a model that is no ensemble."""
    return tuple(step.model_name for step in config.ensemble_scheduling.step)
