"""Turns encoded images into the classifier's input: decode, resize, crop, normalise.

The values equal the results of torchvision's reference transforms on a PIL image: Resize → CenterCrop → ToImage →
ToDtype → Normalize, or of a processor of transformers, whose crop is rounded in another way. The parameters come from
config.pbtxt.

on_torch.py is imported only if `resize_library` is torch or the instance is on a GPU: without torch, the process
starts in a fifth of the time and takes a sixth of the memory.
"""

import ctypes
import enum
import json
import os
from typing import TYPE_CHECKING, Any

# OpenCV reads this once, at import. The gateway's own limit is lower; this one is for other clients of Triton.
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", "100000000")

import cv2
import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from .batches import NumpyBatch, TensorFormat
from .damage import DamageDetector
from .resizing import CentreCrop, InterpolationMode, PillowResize, without_ends

if TYPE_CHECKING:
    import torch

    from .batches import Image
    from .on_torch import TorchBatch, TorchResize

# One instance is one process on one core, so that instances do not compete for cores; for throughput, add instances.
cv2.setNumThreads(1)

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # mallopt(3)
KEPT_BYTES = 128 * 2**20
"""More than an image of 24 megapixels needs with its intermediate arrays: malloc keeps this much for the next image."""

USED_CAPSULE = b"used_dltensor"
"""DLPack's name of a capsule whose tensor was taken over. Triton gives it another name, about which numpy's destructor
of the capsule would print an error."""

ZERO_FREE_ENDS = (b"\xff\xd8\xff", b"\x89PNG")
"""How files begin that do not end in a zero: a JPEG ends in its marker EOI, a PNG in the checksum of IEND."""

TYPES = {"TYPE_FP32": np.float32, "TYPE_UINT8": np.uint8}
"""Data types of PREPROCESSED_IMAGE: normalised values, or pixels that the network normalises itself."""


class Status(enum.IntEnum):
    """IMAGE_STATUS of a row; every row but OK and DAMAGED has a tensor of zeros."""

    OK = 0
    EMPTY = 1
    """RAW_IMAGE_LENGTH is 0."""
    INVALID_LENGTH = 2
    """RAW_IMAGE_LENGTH is negative or beyond the end of RAW_IMAGE."""
    UNDECODABLE = 3
    """OpenCV cannot decode the bytes, or the image has too many pixels."""
    DAMAGED = 4
    """Decoded, but the JPEG's data is damaged: some of the pixels are wrong."""


class TritonPythonModel:
    """RAW_IMAGE uint8 [N, L], RAW_IMAGE_LENGTH int32 [N, 1] → PREPROCESSED_IMAGE [N, 3, H, W], IMAGE_STATUS.

    RAW_IMAGE_LENGTH is optional: see `unpadded`.
    PREPROCESSED_IMAGE is normalised fp32, or the pixels as uint8 if its data_type in config.pbtxt is TYPE_UINT8.
    """

    def initialize(self, args: dict[str, str]) -> None:
        """Read the parameters of config.pbtxt; raises TritonModelException if they are invalid or inconsistent."""
        config = json.loads(args["model_config"])
        parameters = {name: entry["string_value"] for name, entry in config["parameters"].items()}
        self.device = self._device(args)
        self.damage = DamageDetector()
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
            crop = CentreCrop(self.crop_size, parameters["crop_rounding"])
            self.resize = self._resize(parameters["resize_library"], crop)
        except (KeyError, ValueError) as exc:
            raise pb_utils.TritonModelException(f"a parameter is missing or not understood: {exc}") from exc
        self.batch = self._batch(TensorFormat(self.crop_size, TYPES[output["data_type"]], mean, std))

        # Warms up the libraries, so that the first request does not wait for that.
        encoded = damaged_jpeg()
        status, image = self._decode_row(encoded, len(encoded))
        self.batch([image])
        if status is not Status.DAMAGED:
            pb_utils.Logger.log_warn(f"OpenCV {cv2.__version__} reports no damaged JPEGs: they get no warning")
        name, device = args["model_instance_name"], self.device or "cpu"
        pb_utils.Logger.log_info(f"{name} runs on {device}, resizes with {self.resize.described()}")

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request separately: an exception from here would fail the whole batch of requests."""
        decoded = [self._decode_request(request) for request in requests]
        images = [image for rows_or_error in decoded if isinstance(rows_or_error, list) for _, image in rows_or_error]
        try:
            batch = self.batch(images)
        except Exception:
            self._end_if_gpu_is_lost()
            raise
        responses, start = [], 0
        for rows_or_error in decoded:
            if isinstance(rows_or_error, pb_utils.TritonError):
                responses.append(pb_utils.InferenceResponse(error=rows_or_error))
                continue
            rows = batch[start : start + len(rows_or_error)]
            start += len(rows_or_error)
            status = np.array([[status] for status, _ in rows_or_error], np.int32)
            outputs = [output("PREPROCESSED_IMAGE", rows), output("IMAGE_STATUS", status)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses

    def _decode_request(
        self, request: "pb_utils.InferenceRequest"
    ) -> "list[tuple[Status, Image | None]] | pb_utils.TritonError":
        """A (status, image) for each row of a request, or one error for the whole request."""
        try:
            raw_image, length = (
                pb_utils.get_input_tensor_by_name(request, name) for name in ("RAW_IMAGE", "RAW_IMAGE_LENGTH")
            )
            images = np.from_dlpack(raw_image)
            lengths = list(map(unpadded, images)) if length is None else np.from_dlpack(length).ravel().tolist()
            rows = zip(images, lengths, strict=True)
            return [self._decode_row(encoded, length) for encoded, length in rows]
        except Exception as exc:  # the requests batched with this one keep their decoded
            self._end_if_gpu_is_lost()
            return pb_utils.TritonError(f"preprocessor: {type(exc).__name__}: {exc}")

    def _decode_row(self, encoded: NDArray[np.uint8], length: int) -> "tuple[Status, Image | None]":
        """The row's Status and its image, uint8 [H, W, 3], or None where nothing was decoded."""
        if length == 0:
            return Status.EMPTY, None
        if not 0 < length <= len(encoded):
            return Status.INVALID_LENGTH, None
        with self.damage:
            try:
                # Without the padding: with it, OpenCV takes a truncated JPEG for a complete one.
                pixels = cv2.imdecode(encoded[:length], cv2.IMREAD_COLOR_RGB)
            except cv2.error:
                pixels = None
        if pixels is None:
            return Status.UNDECODABLE, None
        if len(self.resize_size) == 1:
            pixels = without_ends(pixels)
        return (Status.DAMAGED if self.damage.damaged else Status.OK), self.resize(pixels)

    def _device(self, args: dict[str, str]) -> "torch.device | None":
        """The GPU of this instance, or None on a CPU; raises TritonModelException if torch finds no GPU."""
        if args["model_instance_kind"] != "GPU":
            return None
        from .on_torch import gpu

        return gpu(args)

    def _resize(self, library: str, crop: CentreCrop) -> "PillowResize | TorchResize":
        """The resize of a library; raises ValueError if the library is unknown."""
        options = self.resize_size, crop, self.interpolation
        if library == "torch":
            from .on_torch import TorchResize

            return TorchResize(*options, self.device)
        if library == "pillow":
            return PillowResize(*options)
        raise ValueError(f"resize_library {library!r} is not pillow or torch")

    def _batch(self, tensor_format: TensorFormat) -> "NumpyBatch | TorchBatch":
        if self.device is None:
            return NumpyBatch(tensor_format)
        from .on_torch import TorchBatch

        return TorchBatch(tensor_format, self.device)

    def _end_if_gpu_is_lost(self) -> None:
        if self.device is not None:
            from .on_torch import end_if_gpu_is_lost

            end_if_gpu_is_lost(self.device)


def unpadded(row: NDArray[np.uint8]) -> int:
    """The length of the image in a zero-padded row, uint8 [L], whose RAW_IMAGE_LENGTH is not given.

    A JPEG or PNG does not end in zeros; files of other formats may, and their headers say where they end.
    """
    data = row.tobytes()
    return len(data.rstrip(b"\0")) if data.startswith(ZERO_FREE_ENDS) else len(data)


def damaged_jpeg() -> NDArray[np.uint8]:
    """A JPEG of noise without the second half of its data, uint8 [bytes]."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    encoded = cv2.imencode(".jpg", noise)[1]
    return np.concatenate([encoded[: len(encoded) // 2], encoded[-2:]])


def keep_freed_memory() -> None:
    """Have malloc keep the buffers of one image for the next: fresh pages would take up to half of the time."""
    libc = ctypes.CDLL(None)
    # No mappings at all: their threshold is capped at 32 MiB, less than an image of 12 megapixels needs.
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def output(name: str, array: "NDArray[Any] | torch.Tensor") -> Any:  # noqa: ANN401  # Triton's
    """An output tensor, by DLPack, since the backend's own conversion from numpy is built against numpy 1."""
    if not isinstance(array, np.ndarray):
        return pb_utils.Tensor.from_dlpack(name, array)
    capsule = array.__dlpack__()
    made = pb_utils.Tensor.from_dlpack(name, capsule)
    ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), ctypes.c_char_p(USED_CAPSULE))
    return made


def pair(sizes: list[int]) -> list[int]:
    """Height and width; a single number is used for both."""
    return (sizes * 2)[:2]


def integers(text: str) -> list[int]:
    """The numbers in a text such as 256 or 256,320."""
    return [int(part) for part in text.split(",")]


def floats(text: str) -> list[float]:
    """The numbers in a text such as 0.485,0.456,0.406."""
    return [float(part) for part in text.split(",")]
