"""The network of all peers: the same TorchScript file, behind the fastest preprocessing that torchvision has.

This module runs in the peers' environment and imports nothing of the gateway.
"""

import os
from pathlib import Path

import cv2
import numpy as np
import torch
from torchvision.transforms.v2 import InterpolationMode, functional

MODEL, LABELS, SIDE = "PEER_MODEL", "PEER_LABELS", 224
"""Variables with the paths of model.pt and of a file with a label in each line; the side of the network's input."""
TOP_K = 5


class Network:
    """The network on one core, with its preprocessing: the whole image, bicubic, mean and standard deviation 0.5."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        cv2.setNumThreads(1)
        self._model = torch.jit.load(os.environ[MODEL]).eval()
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
        batch = torch.stack(images).contiguous(memory_format=torch.channels_last)
        scores, classes = self._model(batch).topk(TOP_K)
        return [
            {"results": [{"status": "ok", "predictions": self._predictions(*row)}]}
            for row in zip(scores.tolist(), classes.tolist(), strict=True)
        ]

    def _predictions(self, scores: list[float], classes: list[int]) -> list[dict[str, object]]:
        pairs = zip(scores, classes, strict=True)
        return [{"label": self._labels[number], "class_id": number, "score": score} for score, number in pairs]
