"""GPU options of the embedded Triton: which GPUs to hide from it, and how much of their memory to pool.

Triton allocates the tensors that a step leaves on a GPU from a pool of `--cuda-memory-pool-byte-size`, 64 MiB by
default: 111 images of 224 × 224. When the pool is full Triton falls back to pinned host memory, which the Python
backend's process copies as if it were its own; a failure is only logged. The next step then reads an uninitialised
buffer, and the answer is wrong without an error (Triton's server issues 7148 and 8177).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.machine.capacity import pinned_pool_bytes
from gateway.machine.gpus import Gpus
from gateway.triton.configs import DataType, ModelConfig, instances_on_gpus
from gateway_local.runtime.base import TritonRuntimeError

PINNED_OPTION = "--pinned-memory-pool-byte-size"
OPTION = "--cuda-memory-pool-byte-size"
DEFAULT_POOL_BYTES = 64 * 2**20
BYTES = {"BOOL": 1, "UINT8": 1, "INT8": 1, "UINT16": 2, "INT16": 2, "FP16": 2, "BF16": 2}
"""Bytes of an element by Triton's data type; the others have 4, or 8 with 64 in their name."""

HIDE = {"CUDA_VISIBLE_DEVICES": "-1"}
"""With it a process sees no GPU (CUDA programming guide, environment variables)."""

NO_GPU = ("--allow-gpu-metrics=false", f"{PINNED_OPTION}=0")
"""Without a GPU both only cause errors in Triton's log: of NVML, DCGM and pinned memory."""

Configs = Mapping[str, ModelConfig]
Say = Callable[[str], None]


class CacheOnGpu(TritonRuntimeError):
    """Triton could not fill a response cache; the message names the model and what to change."""


@dataclass(frozen=True, slots=True)
class Devices:
    """Options and environment for a Triton on this machine."""

    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


def choose_devices(configs: Configs, say: Say, *, images_in_flight: int, gpus: Gpus) -> Devices:
    """Options for running models on this machine's GPUs; `say` gets messages for the operator.

    GPUs that torch cannot use are hidden from Triton, which would put KIND_AUTO models on them and not start. If a
    Python step leaves tensors on a GPU, their pool is sized for `images_in_flight`; so is the pool of pinned memory.
    Raises CacheOnGpu.
    """
    if not gpus.count:
        if gpus.fault:
            say(f"models run on the CPU: {gpus.fault}")
        return Devices(NO_GPU)
    if not gpus.usable:
        say(f"models run on the CPU, and the GPU is hidden from Triton: {gpus.why_not}")
        return Devices(NO_GPU, dict(HIDE))
    if models := uncacheable(configs, gpus.usable):
        raise CacheOnGpu(
            f"{', '.join(models)}: Triton's response cache reads inputs in host memory only, and these come from a "
            "preprocessor on a GPU; put the preprocessor on the CPU (KIND_CPU), or set response_cache { enable: false }"
        )
    options = arguments(pool_bytes(configs, gpus.usable, images_in_flight))
    if options:
        say(f"a preprocessor leaves its images on the GPU, so Triton gets {' '.join(options)}")
    return Devices((*options, f"{PINNED_OPTION}={pinned_pool_bytes(images_in_flight)}"))


def pool_bytes(configs: Configs, gpus: int, images_in_flight: int) -> dict[int, int]:
    """The least size of the pool of each GPU; {} where no Python step leaves its tensors on one.

    `gpus` is the number of GPUs, `images_in_flight` the number of images that may be in Triton at a time. For each step
    that leaves tensors on a GPU: the batches that it and its successors process, batch × instances, and all images
    that may wait between them.
    """
    sizes: dict[int, int] = {}
    for producer, consumers in _pairs(configs):
        config = configs[producer]
        for gpu, instances in instances_on_gpus(config, gpus).items():
            in_hand = max(1, config.max_batch_size) * instances
            for consumer in consumers:
                later = configs[consumer]
                in_hand += max(1, later.max_batch_size) * sum(instances_on_gpus(later, gpus).values() or [1])
            sizes[gpu] = sizes.get(gpu, 0) + _row_bytes(config) * (in_hand + images_in_flight)
    return sizes


def uncacheable(configs: Configs, gpus: int) -> list[str]:
    """Models with a response cache whose inputs are on a GPU, where the cache cannot read them."""
    return sorted(
        {
            consumer
            for producer, consumers in _pairs(configs)
            if instances_on_gpus(configs[producer], gpus)
            for consumer in consumers
            if configs[consumer].response_cache.enable
        }
    )


def arguments(sizes: Mapping[int, int]) -> list[str]:
    """Triton's options for pools of these sizes that exceed the default."""
    return [f"{OPTION}={gpu}:{size}" for gpu, size in sorted(sizes.items()) if size > DEFAULT_POOL_BYTES]


def _pairs(configs: Configs) -> list[tuple[str, list[str]]]:
    """Each Python step of an ensemble, with the steps that read its outputs."""
    followers: dict[str, set[str]] = {}
    for config in configs.values():
        steps = config.ensemble_scheduling.step
        for step in steps:
            if step.model_name not in configs or configs[step.model_name].backend != "python":
                continue
            written = set(step.output_map.values())
            readers = {
                later.model_name
                for later in steps
                if later.model_name in configs and written & set(later.input_map.values())
            }
            followers.setdefault(step.model_name, set()).update(readers)
    return [(producer, sorted(readers)) for producer, readers in sorted(followers.items())]


def _row_bytes(config: ModelConfig) -> int:
    """Bytes of all outputs for one image; an unknown dimension counts as one."""
    return sum(math.prod(max(1, int(dim)) for dim in each.dims) * item_bytes(each.data_type) for each in config.output)


def item_bytes(data_type: int) -> int:
    """Bytes of an element of one of Triton's data types."""
    name = DataType.Name(data_type).removeprefix("TYPE_")
    return BYTES.get(name, 8 if name.endswith("64") else 4)
