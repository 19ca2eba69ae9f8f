"""Requests to a Triton with encoded images, without the gateway."""

import cv2
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput

from gateway.triton.contract import (
    ENSEMBLE_MODEL,
    IMAGE_STATUS,
    PREDICTION,
    PREPROCESSED_IMAGE,
    PREPROCESSOR,
    RAW_IMAGE,
    RAW_IMAGE_LENGTH,
)
from gateway_models.blocking_triton import pad


def encode(pixels: NDArray[np.uint8], extension: str) -> bytes:
    """RGB pixels [H, W, 3] as an image file."""
    return cv2.imencode(extension, pixels[..., ::-1])[1].tobytes()


def inputs_of(images: list[bytes], lengths: list[int] | None = None) -> list[InferInput]:
    """The contract's two inputs; `lengths` replaces the true lengths."""
    raw_image, raw_image_length = pad(images)
    if lengths is not None:
        raw_image_length = np.array(lengths, np.int32).reshape(-1, 1)
    return [
        InferInput(RAW_IMAGE, raw_image.shape, "UINT8").set_data_from_numpy(raw_image),
        InferInput(RAW_IMAGE_LENGTH, raw_image_length.shape, "INT32").set_data_from_numpy(raw_image_length),
    ]


def ask_for_labels(client: InferenceServerClient, image: bytes, top_k: int) -> list[tuple[float, int, str]]:
    """Score, class and label, by falling score, through the classification extension."""
    # Both outputs, although one is read: the cache's key covers only the inputs, so a later request for both outputs
    # would get only the outputs of this request.
    outputs = [InferRequestedOutput(PREDICTION, class_count=top_k), InferRequestedOutput(IMAGE_STATUS)]
    result = client.infer(ENSEMBLE_MODEL, inputs_of([image]), outputs=outputs, client_timeout=60)
    parts = [entry.decode().split(":", 2) for entry in result.as_numpy(PREDICTION)[0]]
    return [(float(score), int(class_id), label) for score, class_id, label in parts]


def preprocess(
    client: InferenceServerClient, images: list[bytes], lengths: list[int] | None = None
) -> tuple[list[int], NDArray[np.float32]]:
    """Each row's status, and PREPROCESSED_IMAGE fp32 [N, 3, 224, 224]."""
    result = client.infer(PREPROCESSOR, inputs_of(images, lengths), client_timeout=60)
    return result.as_numpy(IMAGE_STATUS)[:, 0].tolist(), result.as_numpy(PREPROCESSED_IMAGE)
