"""A model's config.pbtxt by protobuf's parser, compared with the contract and described."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInput, ModelInstanceGroup, ModelOutput

from gateway.triton.contract import (
    AFTER_PARAMETER,
    CPU_RUNTIME_PARAMETER,
    FEATURES,
    IMAGE_STATUS,
    IMAGE_TYPES,
    PREDICTION,
    RAW_IMAGE,
    RAW_IMAGE_LENGTH,
    ROLLOUT_PARAMETER,
    SIZED_FOR,
    TORCHSCRIPT,
)
from gateway.values.rollout import Rollout

__all__ = ["DataType", "ModelConfig", "ModelInput", "ModelInstanceGroup", "ModelOutput"]

INPUTS = {RAW_IMAGE: "TYPE_UINT8"}
OPTIONAL_INPUTS = {RAW_IMAGE_LENGTH: "TYPE_INT32"}
OPTIONAL_OUTPUTS = {IMAGE_STATUS: "TYPE_INT32", FEATURES: "TYPE_FP32"}
DIMS = {RAW_IMAGE: [-1], RAW_IMAGE_LENGTH: [1], IMAGE_STATUS: [1]}

PADDING_PARAMETER, ZEROS = "padding", "zeros"
"""Parameter of an ensemble without RAW_IMAGE_LENGTH, and its value: its preprocessor takes zero-padded images."""


@dataclass(frozen=True, slots=True)
class ImageTensors:
    """The tensors of the contract that an ensemble has, and which images may share a call."""

    prediction: str = PREDICTION
    """The output with the scores."""
    lengths: bool = True
    """Whether it has RAW_IMAGE_LENGTH."""
    status: bool = True
    """Whether it has IMAGE_STATUS."""
    padded: bool = True
    """Whether images may share a call, zero-padded to one length."""
    signed: bool = True
    """Whether each row ends in the image's signature."""


def image_tensors(config: ModelConfig) -> ImageTensors:
    """The tensors of an ensemble that keeps the contract."""
    lengths = any(each.name == RAW_IMAGE_LENGTH for each in config.input)
    padding = config.parameters[PADDING_PARAMETER].string_value if PADDING_PARAMETER in config.parameters else ""
    return ImageTensors(
        prediction_name(config),
        lengths=lengths,
        status=any(each.name == IMAGE_STATUS for each in config.output),
        padded=lengths or padding == ZEROS,
        # Without lengths the preprocessor reads the signature as well, so it is added only if a cache may answer.
        signed=lengths or config.response_cache.enable,
    )


def prediction_name(config: ModelConfig) -> str:
    """The output with the scores: PREDICTION, or the only FP32 output with one dimension."""
    vectors = [each.name for each in config.output if DataType.Name(each.data_type) == "TYPE_FP32"]
    vectors = [name for name in vectors if name != FEATURES]
    return vectors[0] if PREDICTION not in vectors and len(vectors) == 1 else PREDICTION


def breaches(config: ModelConfig) -> list[str]:
    """Violations of the contract in a model's config.pbtxt, one message each; [] if there are none."""
    found = []
    prediction = prediction_name(config)
    for kind, needed, optional, tensors in (
        ("input", INPUTS, OPTIONAL_INPUTS, config.input),
        ("output", {prediction: "TYPE_FP32"}, OPTIONAL_OUTPUTS, config.output),
    ):
        given = {tensor.name: tensor for tensor in tensors}
        wanted = {**needed, **{name: data_type for name, data_type in optional.items() if name in given}}
        for name, data_type in wanted.items():
            if name not in given:
                found.append(f"{kind} {name!r} is missing")
                continue
            if DataType.Name(given[name].data_type) != data_type:
                found.append(f"{kind} {name!r} has data_type {DataType.Name(given[name].data_type)}, not {data_type}")
            dims = list(given[name].dims)
            if name == prediction and len(dims) != 1:
                found.append(f"{kind} {name!r} has dims {dims}, not [ the number of classes ]")
            if name == FEATURES and (len(dims) != 1 or dims[0] < 1):
                found.append(f"{kind} {name!r} has dims {dims}, not [ the size of the embedding ]")
            if name in DIMS and dims != DIMS[name]:
                found.append(f"{kind} {name!r} has dims {dims}, not {DIMS[name]}")
        found += [f"{kind} {name!r} is not part of the contract" for name in given if name not in wanted]
    if config.max_batch_size < 1:
        found.append("max_batch_size is 0, which allows no batches")
    return found


def limitations(config: ModelConfig, last_step: ModelConfig) -> tuple[str, ...]:
    """Features that an ensemble lacks although it keeps the contract, with the consequence: one sentence each."""
    tensors, file = image_tensors(config), f"{config.name}/config.pbtxt"
    found = []
    if not tensors.lengths and tensors.padded:
        found.append(f"{file}: no input {RAW_IMAGE_LENGTH}: only the gateway notices a file without its end")
    elif not tensors.lengths:
        found.append(
            f"{file}: no input {RAW_IMAGE_LENGTH}: images do not share a call; the parameter "
            f"{PADDING_PARAMETER} = {ZEROS!r} says that the preprocessor takes zero-padded images"
        )
    if not tensors.status:
        found.append(
            f"{file}: no output {IMAGE_STATUS}: a file that cannot be decoded fails its call, whose images are then "
            "sent one by one, and a damaged JPEG that can be decoded gets no warning"
        )
    if not has_labels(last_step):
        found.append(f"{last_step.name}/config.pbtxt: output has no label_filename: class numbers are the labels")
    return tuple(found)


def has_labels(step: ModelConfig) -> bool:
    """Whether a model, the last step of an ensemble, has labels for its classes."""
    return any(output.label_filename for output in step.output)


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
