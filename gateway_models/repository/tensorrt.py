"""TensorRT for an ONNX model, as https://github.com/triton-inference-server/onnxruntime_backend configures it."""

from gateway.machine.capacity import GPU_PREFERRED
from gateway.triton.contract import CLASSIFIER_INPUT
from gateway_models.repository.entry import Entry
from gateway_models.repository.spec import Precision

TENSORRT_CACHE = "/var/cache/tensorrt"
"""The folder of engines. Our image for GPUs has it, and docker-compose.yml and the chart have a volume for it."""
WORKSPACE_BYTES = 2**30


def profile(entry: Entry) -> tuple[int, int, int]:
    """The smallest, the usual and the largest batch, for which one engine is built, and the warm-up runs."""
    largest, chosen = entry.spec.serving.max_batch_size, entry.spec.serving.preferred
    preferred = GPU_PREFERRED if chosen is None else chosen
    return 1, max((size for size in preferred if size <= largest), default=largest), largest


def accelerator(entry: Entry) -> str:
    """The part of `execution_accelerators` that has ONNX Runtime run the network with TensorRT on a GPU.

    Given its shapes, ONNX Runtime builds the engine when it loads the model, and one engine takes every batch up to
    max_batch_size. Without them it would build another, for minutes, at each larger batch that comes.
    """
    side = entry.spec.prepared.crop_size
    smallest, _, largest = sizes = profile(entry)
    shapes = [f"{CLASSIFIER_INPUT}:{batch}x3x{side}x{side}" for batch in sizes]
    mode = "FP16" if entry.spec.precision is Precision.FP16 else "FP32"
    given = {
        "precision_mode": mode,
        "max_workspace_size_bytes": str(WORKSPACE_BYTES),
        "trt_profile_min_shapes": shapes[0],
        "trt_profile_opt_shapes": shapes[1],
        "trt_profile_max_shapes": shapes[2],
        "trt_engine_cache_enable": "true",
        "trt_engine_cache_path": TENSORRT_CACHE,
        "trt_timing_cache_enable": "true",
        "trt_timing_cache_path": TENSORRT_CACHE,
    }
    parameters = "\n".join(f'        parameters {{ key: "{key}" value: "{value}" }}' for key, value in given.items())
    return f"""\
    # On a GPU, TensorRT builds an engine for batches of {smallest} to {largest} images when the model is loaded:
    # minutes, once for a network, a kind of GPU and a release of TensorRT. Engines stay in {TENSORRT_CACHE},
    # which must be writable and outlive the container. FP16 is faster; `gateway model verify` says how far off it is.
    # No effect on a CPU.
    gpu_execution_accelerator: [
      {{
        name: "tensorrt"
{parameters}
      }}
    ]
"""
