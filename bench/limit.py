"""(a) The limit: decode, resize, normalise and forward in a loop, without any server."""

import ctypes
import importlib.util
import sys
import time
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from bench.measurement import Measurement
from bench.photos import Photo
from gateway.triton.configs import parameters, read_model_config
from gateway.triton.contract import CLASSIFIER, PREPROCESSOR

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT_BYTES = 2**30
BATCH_SIZES = (1, 2, 4, 8)
TRIAL_SECONDS = 1.0


class Loop:
    """One process on one core, with the repository's model and the preprocessing of its config.pbtxt."""

    def __init__(self, repository: Path) -> None:
        torch.set_num_threads(1)
        cv2.setNumThreads(1)
        # As in the server: malloc keeps freed activations instead of returning them to the kernel.
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        given = parameters(read_model_config(repository / PREPROCESSOR / "config.pbtxt"))
        self._resize_size = [int(part) for part in given["resize_size"].split(",")]
        self._crop_size = [int(given["crop_size"])] * 2
        self._interpolation = InterpolationMode(given["interpolation"])
        self._pillow = (
            None
            if given["resize_library"] == "torch"
            else pillow_resize(repository, self._resize_size, self._crop_size, given["interpolation"])
        )
        mean, std = (torch.tensor([float(part) for part in given[name].split(",")]) for name in ("mean", "std"))
        self._scale = (1 / (255 * std)).reshape(1, 3, 1, 1)
        self._bias = (-mean / std).reshape(1, 3, 1, 1)
        with warnings.catch_warnings():
            # Triton's libtorch backend loads TorchScript, so torch's deprecation warnings do not help.
            warnings.simplefilter("ignore", FutureWarning)
            self._model = torch.jit.load(repository / CLASSIFIER / "1" / "model.pt").eval()
        self._labels = (repository / CLASSIFIER / "labels.txt").read_text().splitlines()

    def label(self, photos: list[Photo]) -> list[str]:
        """Each photograph's best label."""
        return [self._labels[int(self._forward([photo]).argmax())] for photo in photos]

    def best_batch_size(self, photos: list[Photo]) -> int:
        """The fastest batch size on this machine; each is run twice, since the first run compiles."""
        rates = {}
        for _ in range(2):
            rates = {size: self.run(photos, TRIAL_SECONDS, size).rate for size in BATCH_SIZES}
        return max(rates, key=rates.__getitem__)

    def run(self, photos: list[Photo], seconds: float, batch_size: int) -> Measurement:
        """Classify batches for `seconds`."""
        measurement = Measurement()
        started = time.perf_counter()
        while measurement.seconds < seconds:
            batch = [photos[(measurement.images + row) % len(photos)] for row in range(batch_size)]
            self._forward(batch)
            measurement.images += batch_size
            measurement.seconds = time.perf_counter() - started
        return measurement

    @torch.inference_mode()
    def _forward(self, photos: list[Photo]) -> torch.Tensor:
        shape = (len(photos), 3, *self._crop_size)
        batch = torch.empty(shape).contiguous(memory_format=torch.channels_last)
        for row, photo in zip(batch, photos, strict=True):
            pixels = cv2.imdecode(np.frombuffer(photo.data, np.uint8), cv2.IMREAD_COLOR_RGB)
            if self._pillow:
                row.copy_(torch.from_numpy(self._pillow(pixels)).permute(2, 0, 1))
                continue
            image = torch.from_numpy(pixels).permute(2, 0, 1)
            image = functional.resize(image, self._resize_size, self._interpolation, antialias=True)
            row.copy_(functional.center_crop(image, self._crop_size))
        probabilities: torch.Tensor = self._model(batch.mul_(self._scale).add_(self._bias))
        return probabilities


def preprocessor(repository: Path, name: str) -> Any:  # noqa: ANN401  # a file that is no module of ours
    """A module of the preprocessor, so that the bare loop resizes with the same kernel as the service."""
    sys.modules.setdefault("triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
    spec = importlib.util.spec_from_file_location(name, repository / PREPROCESSOR / "1" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pillow_resize(repository: Path, size: list[int], crop: list[int], interpolation: str) -> Any:  # noqa: ANN401
    """The preprocessor's resize and crop, from and to uint8 [height, width, 3]."""
    module = preprocessor(repository, "resizing")
    return module.PillowResize(size, module.CentreCrop(crop), module.InterpolationMode(interpolation))
