"""Makes the input of a model that takes tensors: the values that a preprocessor in Triton would compute."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.decoder.opencv import cv2
from gateway.decoder.resampling import resample_and_crop
from gateway.ingest.resizing import TensorInput


def to_tensor(pixels: NDArray[np.uint8], tensor: TensorInput) -> NDArray[Any]:
    """The tensor of one upright image, uint8 [height, width, 3], RGB.

    Has the same operations in the same order as `triton_models/preprocessor/1/batches.py`, so all values are equal.
    """
    planes = cv2.split(resample_and_crop(pixels, tensor))
    values = np.empty((3, *tensor.crop), np.uint8 if tensor.datatype == "uint8" else np.float32)
    for plane, channel in zip(values, planes, strict=True):
        plane[...] = channel
    if tensor.datatype != "uint8":
        mean, std = (np.array(each, np.float32).reshape(3, 1, 1) for each in (tensor.mean, tensor.std))
        values *= 1 / (255 * std)
        values += -mean / std
    if tensor.channels == "bgr":
        values = values[::-1]
    if tensor.layout == "nhwc":
        values = values.transpose(1, 2, 0)
    return np.ascontiguousarray(values, np.float16 if tensor.datatype == "fp16" else None)
