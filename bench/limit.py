"""The limit of a machine: decode, resize, normalise and forward in a loop, without any server."""

import ctypes
import importlib.util
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import psutil
import torch

from bench.candidates import Load
from bench.measurement import Measurement, accounted
from bench.photos import Photo
from bench.remote import Remote
from gateway.triton.configs import parameters, read_model_config
from gateway.triton.contract import CLASSIFIER, PREPROCESSOR

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT_BYTES = 2**30
BATCH_SIZES = (1, 2, 4, 8)
TRIAL_SECONDS = 1.0


class Limit:
    """A bare loop in each of several processes, with the batch size that is fastest here."""

    def __init__(self, processes: Sequence[Remote], photo: Photo) -> None:
        self._processes, self.label = processes, processes[0].call("label", photo)
        self._photo = photo
        # All at the same time, as they will run.
        sizes = [size.result() for size in [each.start("best_batch_size", photo) for each in processes]]
        self.batch_size: int = sorted(sizes)[len(sizes) // 2]

    def measure(self, load: Load, seconds: float, count: object = None) -> Measurement:  # noqa: ARG002  # see Subject
        """The sum of all processes, with the default photograph."""
        groups = {"bare": [psutil.Process(process.pid) for process in self._processes]}
        return accounted(lambda: groups, lambda: self._run(seconds))

    def _run(self, seconds: float) -> Measurement:
        started = [each.start("run", self._photo, seconds, self.batch_size) for each in self._processes]
        found: list[Measurement] = [each.result() for each in started]
        images = sum(each.images for each in found)
        # Each ends with its own last batch, so the rates are added, not the counts.
        latencies = [latency for each in found for latency in each.latencies_seconds]
        return Measurement(images, images / sum(each.rate for each in found), latencies)


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
        self._crop_size = [int(given["crop_size"])] * 2
        size = [int(part) for part in given["resize_size"].split(",")]
        resizing = preprocessor(repository, "resizing")
        self._resize = resizing.PillowResize(
            size, resizing.CentreCrop(self._crop_size), resizing.InterpolationMode(given["interpolation"])
        )
        mean, std = (torch.tensor([float(part) for part in given[name].split(",")]) for name in ("mean", "std"))
        self._scale = (1 / (255 * std)).reshape(1, 3, 1, 1)
        self._bias = (-mean / std).reshape(1, 3, 1, 1)
        with warnings.catch_warnings():
            # Triton's libtorch backend loads TorchScript, so torch's deprecation warnings do not help.
            warnings.simplefilter("ignore", FutureWarning)
            self._model = torch.jit.load(repository / CLASSIFIER / "1" / "model.pt").eval()
        self._labels = (repository / CLASSIFIER / "labels.txt").read_text().splitlines()

    def label(self, photo: Photo) -> str:
        """A photograph's best label."""
        return self._labels[int(self._forward(photo, 1).argmax())]

    def best_batch_size(self, photo: Photo) -> int:
        """The fastest batch size on this machine; each is run twice, since the first run compiles."""
        rates = {}
        for _ in range(2):
            rates = {size: self.run(photo, TRIAL_SECONDS, size).rate for size in BATCH_SIZES}
        return max(rates, key=rates.__getitem__)

    def run(self, photo: Photo, seconds: float, batch_size: int) -> Measurement:
        """Classify batches for `seconds`."""
        measurement = Measurement()
        started = time.perf_counter()
        while measurement.seconds < seconds:
            self._forward(photo, batch_size)
            measurement.images += batch_size
            now = time.perf_counter() - started
            measurement.latencies_seconds.append(now - measurement.seconds)
            measurement.seconds = now
        return measurement

    @torch.inference_mode()
    def _forward(self, photo: Photo, batch_size: int) -> torch.Tensor:
        batch = torch.empty((batch_size, 3, *self._crop_size)).contiguous(memory_format=torch.channels_last)
        for row in batch:
            pixels = cv2.imdecode(np.frombuffer(photo.data, np.uint8), cv2.IMREAD_COLOR_RGB)
            row.copy_(torch.from_numpy(self._resize(pixels)).permute(2, 0, 1))
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
