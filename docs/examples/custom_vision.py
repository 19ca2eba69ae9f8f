"""Serves an ONNX file of Custom Vision, which takes BGR and returns a map of labels for each image."""

from pathlib import Path

import numpy as np
import onnxruntime

LABELS = Path(__file__).with_name("labels.txt").read_text().splitlines()


def load(device):  # noqa: ARG001 - by position
    """Once in each process."""
    return onnxruntime.InferenceSession(Path(__file__).with_name("model.onnx"))


def classify(images, session):
    """Scores [N, classes] of images uint8 [N, H, W, 3] in RGB."""
    (rows,) = session.run(["loss"], {"data": images[..., ::-1].transpose(0, 3, 1, 2).astype(np.float32)})
    return [[row[label] for label in LABELS] for row in rows]
