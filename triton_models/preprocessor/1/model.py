"""From encoded images to what the classifier was trained on: decode, resize, crop, normalise.

The numbers are those of torchvision's reference transforms on a PIL image: Resize → CenterCrop → ToImage → ToDtype
→ Normalize. The parameters come from config.pbtxt.

on_torch.py is imported only where `resize_library` is torch or the instance is on a GPU: without torch, the process
starts in a fifth of the time and takes a sixth of the memory.
"""

import ctypes
import enum
import json
import os
from typing import TYPE_CHECKING, Any

# Read once, when OpenCV is imported. The gateway's limit is lower; this one is for those who call Triton without it.
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", "100000000")

import cv2
import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from .batches import Form, NumpyBatch
from .resizing import InterpolationMode, PillowResize, without_ends

if TYPE_CHECKING:
    import torch

    from .batches import Image
    from .on_torch import TorchBatch, TorchResize

# One instance is one process on one core. More throughput comes from more instances, which then do not fight for cores.
cv2.setNumThreads(1)

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # mallopt(3)
KEPT_BYTES = 128 * 2**20
"""More than a photograph of 24 megapixels with what is made of it: malloc keeps it, and its pages need no clearing."""

USED_CAPSULE = b"used_dltensor"
"""DLPack's name of a capsule whose tensor was taken over. Triton gives it another one, which numpy's destructor of the
capsule complains of."""

TYPES = {"TYPE_FP32": np.float32, "TYPE_UINT8": np.uint8}
"""Of PREPROCESSED_IMAGE: normalised, or pixels that the network normalises itself."""


class Status(enum.IntEnum):
    """IMAGE_STATUS of a row; every row but OK has a tensor of zeros."""

    OK = 0
    EMPTY = 1
    """RAW_IMAGE_LENGTH is 0."""
    INVALID_LENGTH = 2
    """RAW_IMAGE_LENGTH is negative or beyond the end of RAW_IMAGE."""
    UNDECODABLE = 3
    """The bytes are no image that OpenCV can decode, or one of too many pixels."""


class TritonPythonModel:
    """RAW_IMAGE uint8 [N, L], RAW_IMAGE_LENGTH int32 [N, 1] → PREPROCESSED_IMAGE [N, 3, H, W], IMAGE_STATUS.

    PREPROCESSED_IMAGE is normalised fp32, or the pixels as uint8 where config.pbtxt says TYPE_UINT8 of it.
    """

    def initialize(self, args: dict[str, str]) -> None:
        """Read the parameters of config.pbtxt; raises TritonModelException where they contradict each other."""
        config = json.loads(args["model_config"])
        parameters = {name: entry["string_value"] for name, entry in config["parameters"].items()}
        self.device = self._device(args)
        keep_freed_memory()
        try:
            self.resize_size = integers(parameters["resize_size"])
            self.crop_size = pair(integers(parameters["crop_size"]))
            self.interpolation = InterpolationMode(parameters["interpolation"])
            mean, std = (np.array(floats(parameters[name]), np.float32).reshape(3, 1, 1) for name in ("mean", "std"))
        except (KeyError, ValueError) as exc:
            raise pb_utils.TritonModelException(f"a parameter is missing or not understood: {exc}") from exc

        output = next(output for output in config["output"] if output["name"] == "PREPROCESSED_IMAGE")
        if [int(dim) for dim in output["dims"]] != [3, *self.crop_size]:
            raise pb_utils.TritonModelException(
                f"PREPROCESSED_IMAGE has dims {output['dims']}, but crop_size is {parameters['crop_size']}"
            )
        if output["data_type"] not in TYPES:
            raise pb_utils.TritonModelException(
                f"PREPROCESSED_IMAGE is {output['data_type']}, but can be {' or '.join(TYPES)} only"
            )
        if any(crop > resized for crop, resized in zip(self.crop_size, pair(self.resize_size), strict=True)):
            raise pb_utils.TritonModelException(
                "crop_size is larger than resize_size: the crop would have black borders"
            )

        try:
            self.resize = self._resize(parameters["resize_library"])
        except (KeyError, ValueError) as exc:
            raise pb_utils.TritonModelException(f"a parameter is missing or not understood: {exc}") from exc
        self.batch = self._batch(Form(self.crop_size, TYPES[output["data_type"]], mean, std))

        # The first image takes the libraries' set-up on itself.
        encoded = cv2.imencode(".ppm", np.zeros((8, 8, 3), np.uint8))[1]
        self.batch([self._decode_row(encoded, len(encoded))[1]])
        name, device = args["model_instance_name"], self.device or "cpu"
        pb_utils.Logger.log_info(f"{name} runs on {device}, resizes with {self.resize.described()}")

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request on its own: an exception from here would fail all that were batched with it."""
        answers = [self._decode_request(request) for request in requests]
        images = [image for answer in answers if isinstance(answer, list) for _, image in answer]
        try:
            batch = self.batch(images)
        except Exception:
            self._end_if_gpu_is_lost()
            raise
        responses, start = [], 0
        for answer in answers:
            if isinstance(answer, pb_utils.TritonError):
                responses.append(pb_utils.InferenceResponse(error=answer))
                continue
            rows = batch[start : start + len(answer)]
            start += len(answer)
            status = np.array([[status] for status, _ in answer], np.int32)
            outputs = [output("PREPROCESSED_IMAGE", rows), output("IMAGE_STATUS", status)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses

    def _decode_request(
        self, request: "pb_utils.InferenceRequest"
    ) -> "list[tuple[Status, Image | None]] | pb_utils.TritonError":
        """A (status, image) for each row of a request, or the error that stands for all of it."""
        try:
            raw_image, length = (
                np.from_dlpack(pb_utils.get_input_tensor_by_name(request, name))
                for name in ("RAW_IMAGE", "RAW_IMAGE_LENGTH")
            )
            rows = zip(raw_image, length.ravel().tolist(), strict=True)
            return [self._decode_row(encoded, length) for encoded, length in rows]
        except Exception as exc:  # the requests batched with this one keep their answers
            self._end_if_gpu_is_lost()
            return pb_utils.TritonError(f"preprocessor: {type(exc).__name__}: {exc}")

    def _decode_row(self, encoded: NDArray[np.uint8], length: int) -> "tuple[Status, Image | None]":
        """The row's Status and its image, uint8 [H, W, 3], or None where the status is not OK."""
        if length == 0:
            return Status.EMPTY, None
        if not 0 < length <= len(encoded):
            return Status.INVALID_LENGTH, None
        try:
            # Without the padding: behind it OpenCV takes a truncated JPEG for a whole one.
            pixels = cv2.imdecode(encoded[:length], cv2.IMREAD_COLOR_RGB)
        except cv2.error:
            pixels = None
        if pixels is None:
            return Status.UNDECODABLE, None
        if len(self.resize_size) == 1:
            pixels = without_ends(pixels)
        return Status.OK, self.resize(pixels)

    def _device(self, args: dict[str, str]) -> "torch.device | None":
        """The GPU of this instance, or None on a CPU; raises TritonModelException where torch sees none."""
        if args["model_instance_kind"] != "GPU":
            return None
        from .on_torch import gpu

        return gpu(args)

    def _resize(self, library: str) -> "PillowResize | TorchResize":
        """What resizes; raises ValueError where there is no such library."""
        how = self.resize_size, self.crop_size, self.interpolation
        if library != "torch":
            return PillowResize(*how, library)
        from .on_torch import TorchResize

        return TorchResize(*how, self.device)

    def _batch(self, form: Form) -> "NumpyBatch | TorchBatch":
        if self.device is None:
            return NumpyBatch(form)
        from .on_torch import TorchBatch

        return TorchBatch(form, self.device)

    def _end_if_gpu_is_lost(self) -> None:
        if self.device is not None:
            from .on_torch import end_if_gpu_is_lost

            end_if_gpu_is_lost(self.device)


def keep_freed_memory() -> None:
    """Have malloc keep the buffers of a picture for the next one: fresh pages are up to half of the time."""
    libc = ctypes.CDLL(None)
    # No mappings at all: a threshold for them is capped at 32 MiB, less than a picture of 12 megapixels.
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def output(name: str, array: "NDArray[Any] | torch.Tensor") -> Any:  # noqa: ANN401  # Triton's
    """An output tensor. By DLPack: the backend's own conversion from numpy is built against numpy 1."""
    if not isinstance(array, np.ndarray):
        return pb_utils.Tensor.from_dlpack(name, array)
    capsule = array.__dlpack__()
    made = pb_utils.Tensor.from_dlpack(name, capsule)
    ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), ctypes.c_char_p(USED_CAPSULE))
    return made


def pair(sizes: list[int]) -> list[int]:
    """Height and width, where one number stands for both."""
    return (sizes * 2)[:2]


def integers(text: str) -> list[int]:
    """The numbers in text such as 256 or 256,320."""
    return [int(part) for part in text.split(",")]


def floats(text: str) -> list[float]:
    """The numbers in text such as 0.485,0.456,0.406."""
    return [float(part) for part in text.split(",")]
