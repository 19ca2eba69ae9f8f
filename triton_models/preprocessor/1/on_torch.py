"""The parts that need torch: torch's resize, and batches on a GPU. Without either, torch is not imported."""

import os
from typing import TYPE_CHECKING

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from .batches import Image, TensorFormat
    from .resizing import CentreCrop, InterpolationMode

# One instance is one process on one core.
torch.set_num_threads(1)

LOST_GPU = 74
"""Exit code of a process that can no longer use its GPU (EX_IOERR of sysexits.h)."""


class TorchBatch:
    """Batches on a GPU, where the classifier reads them."""

    def __init__(self, tensor_format: "TensorFormat", device: torch.device) -> None:
        self.size, self.device = tensor_format.size, device
        self.dtype = torch.float32 if tensor_format.dtype is np.float32 else torch.uint8
        self.scale, self.bias = (
            torch.from_numpy(each).to(device) for each in (tensor_format.scale, tensor_format.bias)
        )

    def __call__(self, images: "list[Image | None]") -> Tensor:
        """See NumpyBatch."""
        batch = torch.empty((len(images), 3, *self.size), dtype=self.dtype, device=self.device)
        for row, image in zip(batch, images, strict=True):
            if image is not None:
                row.copy_(torch.as_tensor(image).permute(2, 0, 1))
        if self.dtype is torch.float32:
            batch.mul_(self.scale).add_(self.bias)
        for row, image in zip(batch, images, strict=True):
            if image is None:
                row.zero_()
        return batch


class TorchResize:
    """torchvision's resize of tensors and a centre crop, on a GPU or (device None) on the CPU."""

    def __init__(
        self,
        size: list[int],
        crop: "CentreCrop",
        interpolation: "InterpolationMode",
        device: torch.device | None = None,
    ) -> None:
        # Imported here since it takes as long as torch, and Pillow's resize does not need it.
        from torchvision.transforms import InterpolationMode as TorchvisionMode
        from torchvision.transforms.v2 import functional

        self.size, self.crop, self.interpolation = size, crop, TorchvisionMode(interpolation.value)
        self.device, self.functional = device, functional

    def described(self) -> str:
        """The name of the resize library, for the log."""
        return "torch"

    def __call__(self, pixels: NDArray[np.uint8]) -> Tensor:
        """uint8 [H, W, 3] of any size → uint8 of the crop's size, on the device."""
        image = torch.from_numpy(pixels).permute(2, 0, 1).to(self.device or "cpu")
        image = self.functional.resize(image, self.size, self.interpolation, antialias=True)
        (top, left), (height, width) = self.crop.corner(*image.shape[-2:]), self.crop.size
        return image[:, top : top + height, left : left + width].permute(1, 2, 0)


def gpu(args: dict[str, str]) -> torch.device:
    """The GPU that Triton assigns to this instance; raises TritonModelException if torch finds no GPU."""
    if not torch.cuda.is_available():
        raise pb_utils.TritonModelException(
            "instance_group asks for a GPU and torch sees none: use KIND_AUTO or KIND_CPU, or install a torch with CUDA"
        )
    return torch.device("cuda", int(args["model_instance_device_id"]))


def end_if_gpu_is_lost(device: torch.device) -> None:
    """End this process if nothing runs on its GPU any more.

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
