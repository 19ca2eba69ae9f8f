"""TorchScript in torch, on a CPU or a GPU."""

import ctypes
import gc
import os
import warnings
from pathlib import Path
from typing import Any

# torch's objects live as long as the process: garbage collections during its import would take a quarter of the time,
# and each later full collection would traverse them while a request waits.
gc.disable()
import torch  # noqa: E402
import triton_python_backend_utils as pb_utils  # noqa: E402

# Modules in this folder, which Triton's stub adds to sys.path.
from positions import by_position  # noqa: E402
from torch import Tensor  # noqa: E402

gc.freeze()
gc.enable()

# The platform is TorchScript, so torch's deprecation warnings do not help users.
warnings.filterwarnings("ignore", message=r".*torch\.jit\.\w+.*deprecated")

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # mallopt(3)
KEPT_BYTES = 2**30
LOST_GPU = 74
"""Exit code of a process that can no longer use its GPU (EX_IOERR of sysexits.h)."""


class Instance:
    """One instance of a TorchScript module on one device."""

    def __init__(self, path: Path, config: dict[str, Any], parameters: dict[str, str], args: dict[str, str]) -> None:
        """Load the network onto the instance's device; raises TritonModelException if it cannot."""
        # One core per instance by default, so that instances do not compete for cores.
        torch.set_num_threads(int(parameters.get("INTRA_OP_THREAD_COUNT", 1)))
        torch.set_num_interop_threads(int(parameters.get("INTER_OP_THREAD_COUNT", 1)))
        self.optimized = not is_true(parameters.get("DISABLE_OPTIMIZED_EXECUTION", "false"))
        self.inference_mode = is_true(parameters.get("INFERENCE_MODE", "true"))
        self.inputs = by_position(config["input"])
        self.outputs = by_position(config["output"])
        self.device = device_of(args)
        if self.device.type == "cpu":
            keep_freed_memory()
        try:
            self.model = torch.jit.load(path, map_location=self.device).eval()
        except Exception as exc:  # RuntimeError, or of the file system
            raise pb_utils.TritonModelException(
                f"{path} is not a TorchScript module that torch {torch.__version__} loads: {exc}"
            ) from exc
        self.described = f"torch {torch.__version__} on {describe(self.device)}"

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run the requests as one batch; if that fails, one by one, so that each gets its own response or error."""
        try:
            return self._run(requests)
        except Exception as exc:  # Triton must get one response for each request, for any error
            end_if_gpu_is_lost(self.device)
            if len(requests) > 1:
                return [self.execute([request])[0] for request in requests]
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError(f"{type(exc).__name__}: {exc}"))]

    def _run(self, requests: list[Any]) -> list[Any]:
        # DLPack both ways: the backend's own conversion to numpy is built against numpy 1.
        given = [
            [torch.from_dlpack(pb_utils.get_input_tensor_by_name(request, name).to_dlpack()) for name in self.inputs]
            for request in requests
        ]
        sizes = [len(tensors[0]) for tensors in given]
        batch = [
            self._to_device(torch.cat(parts) if len(parts) > 1 else parts[0]) for parts in zip(*given, strict=True)
        ]
        with torch.inference_mode(self.inference_mode), torch.jit.optimized_execution(self.optimized):
            results = self.model(*batch)
        if isinstance(results, Tensor):
            results = (results,)
        if len(results) < len(self.outputs):
            raise ValueError(f"the model has {len(results)} outputs, config.pbtxt has {len(self.outputs)}")
        # Detached, since DLPack refuses tensors that require gradients, and in C order, which Triton needs.
        parts = [result.detach().contiguous().split(sizes) for result in results[: len(self.outputs)]]
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor.from_dlpack(name, part) for name, part in zip(self.outputs, row, strict=True)]
            )
            for row in zip(*parts, strict=True)
        ]

    def _to_device(self, tensor: Tensor) -> Tensor:
        # Images in channels-last order: convolutions on the CPU and on tensor cores take a third less time.
        # Not uint8 pixels: a network that normalises them converts the order afterwards, in less time.
        images = tensor.dim() == 4 and tensor.is_floating_point()
        memory_format = torch.channels_last if images else torch.contiguous_format
        return tensor.to(self.device).contiguous(memory_format=memory_format)


def device_of(args: dict[str, str]) -> torch.device:
    """The torch device of this instance; raises TritonModelException if it must be a GPU and torch finds none."""
    kind = args["model_instance_kind"]
    if kind == "CPU" or (kind == "MODEL" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise pb_utils.TritonModelException(
            "instance_group asks for a GPU and torch sees none: use KIND_AUTO or KIND_CPU, or install a torch with CUDA"
        )
    return torch.device("cuda", int(args["model_instance_device_id"]))


def end_if_gpu_is_lost(device: torch.device) -> None:
    """End this process if its GPU is no longer usable.

    After some errors, such as a device-side assert or a GPU that fell off the bus, a process cannot use its CUDA
    context again: it would fail every request, while Triton reports it as ready. The gateway recovers from a process
    that died.
    """
    if device.type != "cuda":
        return
    try:
        torch.zeros(1, device=device).add_(1).item()
    except torch.OutOfMemoryError:
        return
    except RuntimeError as exc:
        pb_utils.Logger.log_error(f"the GPU is lost to this process, which ends: {exc}")
        os._exit(LOST_GPU)  # without cleaning up, which needs the GPU


def keep_freed_memory() -> None:
    """Have malloc keep the memory that large batches free, instead of returning it to the kernel.

    By default glibc maps each allocation of 32 MB or more again: page faults for the activations of a batch of 32 then
    take longer than the arithmetic.
    """
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
    libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def describe(device: torch.device) -> str:
    """A device's name for the log."""
    return f"GPU {device.index} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else "the CPU"


def is_true(text: str) -> bool:
    """Whether a parameter's text is true, in the libtorch backend's spelling."""
    return text.strip().lower() in {"true", "1"}
