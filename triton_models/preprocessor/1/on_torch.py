"""What needs torch: a resize with torch's pixels, and an instance on a GPU. Without either, torch is not imported."""

import os
from typing import TYPE_CHECKING

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from .batches import Form, Image
    from .resizing import InterpolationMode

# One instance is one process on one core.
torch.set_num_threads(1)

LOST_GPU = 74
"""Exit code of a process whose GPU is lost to it (EX_IOERR of sysexits.h)."""


class TorchBatch:
    """Batches on a GPU, where the classifier finds them."""

    def __init__(self, form: "Form", device: torch.device) -> None:
        self.size, self.device = form.size, device
        self.dtype = torch.float32 if form.dtype is np.float32 else torch.uint8
        self.scale, self.bias = (torch.from_numpy(each).to(device) for each in (form.scale, form.bias))

    def __call__(self, images: "list[Image | None]") -> Tensor:
        """As NumpyBatch does."""
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
    """Resize and CenterCrop as torchvision has them for tensors, on a GPU or (device None) on the CPU."""

    def __init__(
        self, size: list[int], crop: list[int], interpolation: "InterpolationMode", device: torch.device | None = None
    ) -> None:
        # Here and not above: it takes as long to import as torch, and Pillow's resize does without it.
        from torchvision.transforms import InterpolationMode as TheirMode
        from torchvision.transforms.v2 import functional

        self.size, self.crop, self.interpolation = size, crop, TheirMode(interpolation.value)
        self.device, self.functional = device, functional

    def described(self) -> str:
        """What resizes, for the log."""
        return "torch"

    def __call__(self, pixels: NDArray[np.uint8]) -> Tensor:
        """uint8 [H, W, 3] of any size → uint8 of crop_size, on the device."""
        image = torch.from_numpy(pixels).permute(2, 0, 1).to(self.device or "cpu")
        image = self.functional.resize(image, self.size, self.interpolation, antialias=True)
        return self.functional.center_crop(image, self.crop).permute(1, 2, 0)


def gpu(args: dict[str, str]) -> torch.device:
    """The GPU that Triton gives this instance; raises TritonModelException where torch sees none."""
    if not torch.cuda.is_available():
        raise pb_utils.TritonModelException(
            "instance_group asks for a GPU and torch sees none: use KIND_AUTO or KIND_CPU, or install a torch with CUDA"
        )
    return torch.device("cuda", int(args["model_instance_device_id"]))


def end_if_gpu_is_lost(device: torch.device) -> None:
    """End this process where nothing runs on its GPU any more.

    After some errors, such as a device-side assert or a GPU that fell off the bus, a process never gets its CUDA
    context back: it would fail every request from then on, while Triton calls it ready. Its death is seen, and mended.
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
