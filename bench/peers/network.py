"""The network of all peers, by torch or ONNX Runtime, behind the fastest preprocessing that torchvision has.

This module runs in the peers' environment and imports nothing of the gateway.
"""

import os
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import torch
from torchvision.transforms.v2 import InterpolationMode, functional

MODEL, RUNTIME, LABELS, THREADS, SIDE = "PEER_MODEL", "PEER_RUNTIME", "PEER_LABELS", "PEER_THREADS", 224
"""Variables with the path of the network, its runtime, the path of a file with a label in each line, and the threads of
each library, empty for its default; the side of the network's input."""
TORCH, ONNX = RUNTIMES = "torch", "onnxruntime"
TOP_K = 5
Scores = Callable[[torch.Tensor], torch.Tensor]
"""Computes the scores [N, classes] of a batch fp32 [N, 3, 224, 224]."""


class Network:
    """The network with its preprocessing: the whole image, bicubic, mean and standard deviation 0.5."""

    def __init__(self) -> None:
        if threads := os.environ[THREADS]:
            torch.set_num_threads(int(threads))
            cv2.setNumThreads(int(threads))
        self._scores = {TORCH: by_torch, ONNX: by_onnx_runtime}[os.environ[RUNTIME]](os.environ[MODEL])
        self._labels = Path(os.environ[LABELS]).read_text().splitlines()

    def prepare(self, encoded: bytes) -> torch.Tensor:
        """Decode, resize and normalise a file to fp32 [3, 224, 224]."""
        pixels = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR_RGB)
        image = torch.from_numpy(pixels).permute(2, 0, 1)
        image = functional.resize(image, [SIDE, SIDE], InterpolationMode.BICUBIC, antialias=True)
        normalised: torch.Tensor = image.to(torch.float32).div_(127.5).sub_(1)
        return normalised

    @torch.inference_mode()
    def answers(self, images: list[torch.Tensor]) -> list[dict[str, object]]:
        """For each image the JSON of `POST /predict`, with the fields that the load generator checks."""
        scores, classes = self._scores(torch.stack(images)).topk(TOP_K)
        return [
            {"results": [{"status": "ok", "predictions": self._predictions(*row)}]}
            for row in zip(scores.tolist(), classes.tolist(), strict=True)
        ]

    def _predictions(self, scores: list[float], classes: list[int]) -> list[dict[str, object]]:
        pairs = zip(scores, classes, strict=True)
        return [{"label": self._labels[number], "class_id": number, "score": score} for score, number in pairs]


def by_torch(path: str) -> Scores:
    """A TorchScript file, which gets its batches in the memory layout in which it is fastest."""
    model = torch.jit.load(path).eval()

    def scores(batch: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = model(batch.contiguous(memory_format=torch.channels_last))
        return answer

    return scores


def by_onnx_runtime(path: str) -> Scores:
    """An ONNX file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ[THREADS] or 0)
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()

    def scores(batch: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(session.run(None, {given.name: batch.numpy()})[0])

    return scores
