"""A model's config.pbtxt by protobuf's parser, compared with the contract and described."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInput, ModelInstanceGroup, ModelOutput

from gateway.triton.contract import (
    AFTER_PARAMETER,
    CPU_RUNTIME_PARAMETER,
    IMAGE_TYPES,
    ROLLOUT_PARAMETER,
    SIZED_FOR,
    TORCHSCRIPT,
)
from gateway.values.rollout import Rollout

__all__ = ["DataType", "ModelConfig", "ModelInput", "ModelInstanceGroup", "ModelOutput"]


def image_tensor(data_type: int) -> str | None:
    """The name in IMAGE_TYPES of a tensor's data_type; None for any other type."""
    return next((name for name, kind in IMAGE_TYPES.items() if DataType.Name(data_type) == kind), None)


HOLDS_BACK = "with a queue policy, Triton can delay requests by half a second while an instance is free"
REMEDY = "remove default_queue_policy; the gateway limits the number of waiting requests and their time"
OWN_BACKEND = "model.py"
"""Triton's `runtime` of a Python-based backend, such as this project's own; NVIDIA's is a shared library."""


def read_model_config(path: Path) -> ModelConfig:
    """The model configuration in a config.pbtxt; raises OSError, or ValueError that names the file and the line."""
    try:
        parsed = _parsed(path.read_text("utf-8"))
    except (text_format.ParseError, UnicodeDecodeError) as exc:
        raise ValueError(f"{path}: {exc}") from exc
    own = ModelConfig()  # callers may change it
    own.CopyFrom(parsed)
    return own


@lru_cache(maxsize=256)
def _parsed(text: str) -> ModelConfig:
    """The configuration in a text. A start reads each seven times, and parsing takes a millisecond or two."""
    return text_format.Parse(text, ModelConfig())


def read_model_configs(repository: Path, instead: str = "") -> dict[str, ModelConfig]:
    """The readable configurations of a model repository, by name; Triton reports the errors of the others.

    A model's file `instead`, a path in its folder, replaces its config.pbtxt if it exists.
    """
    configs = {}
    for path in sorted(repository.glob("*/config.pbtxt")):
        other = path.parent / instead
        try:
            configs[path.parent.name] = read_model_config(other if other.is_file() else path)
        except (OSError, ValueError):
            continue
    return configs


def parameters(config: ModelConfig) -> Mapping[str, str]:
    """The `parameters` of a model configuration as text."""
    return {name: parameter.string_value for name, parameter in config.parameters.items()}


def rollout(config: ModelConfig) -> Rollout | None:
    """Which versions of a model answer, by its ensemble; None if it does not say so. Raises ValidationError."""
    text = parameters(config).get(ROLLOUT_PARAMETER)
    return Rollout.read(text) if text else None


def steps(config: ModelConfig) -> tuple[str, ...]:
    """The names of an ensemble's steps in order; () for any other model."""
    return tuple(step.model_name for step in config.ensemble_scheduling.step)


def network_step(config: ModelConfig) -> str:
    """The name of an ensemble's network: the last step, or the one before a post-processing step; "" if none."""
    names = steps(config)
    has_step_after = AFTER_PARAMETER in config.parameters
    return names[-1 - (has_step_after and len(names) > 1)] if names else ""


def instances_on_gpus(config: ModelConfig, gpus: int) -> dict[int, int]:
    """Instances of a model on each GPU; KIND_AUTO without listed GPUs means every GPU, if there are any."""
    found: dict[int, int] = {}
    for group in config.instance_group or [ModelInstanceGroup()]:
        on_gpu = group.kind == ModelInstanceGroup.KIND_GPU or (group.kind == ModelInstanceGroup.KIND_AUTO and gpus)
        for gpu in (list(group.gpus) or range(gpus)) if on_gpu else ():
            found[gpu] = found.get(gpu, 0) + max(1, group.count)
    return found


def sizes(config: ModelConfig) -> str:
    """The instances of a model as its Triton runs it, and where their number comes from, in words."""
    groups = []
    for group in config.instance_group:
        gpus = ", ".join(map(str, group.gpus))
        where = f" on GPU {gpus}" if len(group.gpus) == 1 else f" on each of GPU {gpus}" if gpus else " on the CPU"
        groups.append(f"{group.count} instance{'s' * (group.count != 1)}{where}")
    sized_for = parameters(config).get(SIZED_FOR)
    origin = f"sized for {sized_for}" if sized_for else "as its configuration says"
    return f"{config.name}: {' and '.join(groups) or 'no instances'}, {origin}"


def has_queue_policy(config: ModelConfig) -> bool:
    """Whether a model's dynamic batcher has a policy that prevents it from forming batches ahead.

    Without a policy, Triton forms batches while its instances are busy, and an instance that finishes takes one
    immediately. With a policy (a bound, a timeout, or priorities) it forms a batch only while an instance is free, and
    the batcher is not notified when one becomes free: it checks again on the next request, or after half a second
    (`SupportPrefetching` and `WaitForPayloadSlotAvailable` in the core's dynamic_batch_scheduler.cc). Before 2.72, a
    queue delay together with the policy is worse: each merge of two waiting batches counts an instance less, until the
    model is loaded again (Triton's server issue 8870, fixed by core pull request 509).
    """
    batching, policy = config.dynamic_batching, config.dynamic_batching.default_queue_policy
    return bool(
        batching.priority_levels
        or policy.default_timeout_microseconds
        or policy.allow_timeout_override
        or policy.max_queue_size
    )


def network_runtime(network: ModelConfig, ensemble: Mapping[str, str]) -> str | None:
    """The name of the runtime; None if the configuration names no backend.

    `network` is the configuration of an ensemble's network as Triton completed it: with the kinds of instances that
    exist, and with the file of the backend. `ensemble` has the parameters of the ensemble.
    """
    on_cpu = all(group.kind == ModelInstanceGroup.KIND_CPU for group in network.instance_group)
    if network.backend == "onnxruntime" and on_cpu:
        accelerators = network.optimization.execution_accelerators.cpu_execution_accelerator
        return str(accelerators[0].name if accelerators else network.backend)
    if network.backend != "pytorch":
        return str(network.backend) or None
    if network.runtime != OWN_BACKEND:
        return "libtorch"
    return ensemble.get(CPU_RUNTIME_PARAMETER, TORCHSCRIPT) if on_cpu else TORCHSCRIPT
