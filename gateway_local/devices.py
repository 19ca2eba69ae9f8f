"""GPU options of the embedded Triton: which GPUs to hide from it, and how much of their memory to pool."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.triton.model_config import ModelConfig
from gateway_local.cuda_pool import PINNED_OPTION, arguments, pinned_arguments, pool_bytes, uncacheable
from gateway_local.runtime.base import TritonRuntimeError
from gateway_machine.gpus import Gpus, find_gpus

HIDE = {"CUDA_VISIBLE_DEVICES": "-1"}
"""With it a process sees no GPU (CUDA programming guide, environment variables)."""

NO_GPU = ("--allow-gpu-metrics=false", f"{PINNED_OPTION}=0")
"""Without a GPU both only cause errors in Triton's log: of NVML, DCGM and pinned memory."""

Say = Callable[[str], None]


class CacheOnGpu(TritonRuntimeError):
    """Triton could not fill a response cache; the message names the model and what to change."""


@dataclass(frozen=True, slots=True)
class Devices:
    """Options and environment for a Triton on this machine."""

    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


def choose_devices(
    configs: Mapping[str, ModelConfig], say: Say, *, images_in_flight: int, gpus: Callable[[], Gpus] = find_gpus
) -> Devices:
    """Options for running models on this machine's GPUs; `say` gets what the operator must know.

    GPUs that torch cannot use are hidden from Triton, which would put KIND_AUTO models on them and not start. If a
    Python step leaves tensors on a GPU, their pool is sized for `images_in_flight`; so is the pool of pinned memory.
    Raises CacheOnGpu.
    """
    found = gpus()
    if not found.count:
        if found.fault:
            say(f"models run on the CPU: {found.fault}")
        return Devices(NO_GPU)
    if not found.usable:
        say(f"models run on the CPU, and the GPU is hidden from Triton: {found.why_not}")
        return Devices(NO_GPU, dict(HIDE))
    if models := uncacheable(configs, found.usable):
        raise CacheOnGpu(
            f"{', '.join(models)}: Triton's response cache reads inputs in host memory only, and these come from a "
            "preprocessor on a GPU; put the preprocessor on the CPU (KIND_CPU), or set response_cache { enable: false }"
        )
    sizes = pool_bytes(configs, found.usable, images_in_flight)
    options = arguments(sizes)
    if options:
        say(f"a preprocessor leaves its images on the GPU, so Triton gets {' '.join(options)}")
    return Devices((*options, *pinned_arguments(configs, images_in_flight)))
