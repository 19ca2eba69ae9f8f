"""The size of Triton's pool of GPU memory that holds all tensors between steps.

Triton allocates the tensors that a step leaves on a GPU from a pool of `--cuda-memory-pool-byte-size`, 64 MiB by
default: 111 images of 224 × 224. When the pool is full Triton falls back to pinned host memory, which the Python
backend's process copies as if it were its own; a failure is only logged. The next step then reads an uninitialised
buffer, and the answer is wrong without an error (Triton's server issues 7148 and 8177).
"""

import math
from collections.abc import Mapping

from gateway.triton.model_config import DataType, ModelConfig, instances_on_gpus
from gateway_local.sizing import BYTES
from gateway_machine.capacity import DEFAULT_PINNED_POOL_BYTES, pinned_pool_bytes

DEFAULT_POOL_BYTES = 64 * 2**20
PINNED_OPTION = "--pinned-memory-pool-byte-size"
OPTION = "--cuda-memory-pool-byte-size"
Configs = Mapping[str, ModelConfig]


def pool_bytes(configs: Configs, gpus: int, images_in_flight: int) -> dict[int, int]:
    """The least size of the pool of each GPU; {} where no Python step leaves its tensors on one.

    `gpus` is the number of GPUs, `images_in_flight` the number of images that may be in Triton at once. For each step
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


def pinned_arguments(configs: Configs, images_in_flight: int) -> list[str]:
    """Triton's option for the pool of pinned host memory, if the images in flight exceed the default."""
    image_bytes = max((_row_bytes(configs[producer]) for producer, _ in _pairs(configs)), default=0)
    size = pinned_pool_bytes(image_bytes, images_in_flight)
    return [f"{PINNED_OPTION}={size}"] if size > DEFAULT_PINNED_POOL_BYTES else []


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
    return sum(
        math.prod(max(1, int(dim)) for dim in output.dims) * BYTES.get(DataType.Name(output.data_type), 4)
        for output in config.output
    )
