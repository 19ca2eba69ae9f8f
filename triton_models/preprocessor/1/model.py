"""From encoded images to what the classifier was trained on: decode, resize, crop, normalise.

The numbers are those of torchvision's reference transforms on a PIL image: Resize → CenterCrop → ToImage → ToDtype
→ Normalize. The parameters come from config.pbtxt.
"""

import ctypes
import enum
import json
import os
import re
from typing import Any

# Read once, when OpenCV is imported. The gateway's limit is lower; this one is for those who call Triton without it.
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", "100000000")

import cv2
import numpy as np
import PIL
import torch
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

try:
    import exact_resize
except ImportError:  # Pillow itself makes the same pixels, in six times the time
    exact_resize = None

# One instance is one process on one core. More throughput comes from more instances, which then do not fight for cores.
cv2.setNumThreads(1)
torch.set_num_threads(1)

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # mallopt(3)
KEPT_BYTES = 128 * 2**20
"""More than a photograph of 24 megapixels with what is made of it: malloc keeps it, and its pages need no clearing."""

LOST_GPU = 74
"""Exit code of a process whose GPU is lost to it (EX_IOERR of sysexits.h)."""

MAX_ASPECT = 4
"""Where one side is more than this many times the other, its ends go before the resize: the crop drops them anyway."""

PROBES = ((300, 400), (400, 101), (64, 250), (7, 5), (24, 6))
"""Heights and widths of pictures that exact_resize has to resize as Pillow does before it is trusted with others."""


class InterpolationMode(enum.Enum):
    """Torchvision's names. Its own enumeration would take a process seconds more to start."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


TYPES = {"TYPE_FP32": torch.float32, "TYPE_UINT8": torch.uint8}
"""Of PREPROCESSED_IMAGE: normalised, or pixels that the network normalises itself."""

FILTERS = {mode: Image.Resampling[mode.name.removesuffix("_EXACT")] for mode in InterpolationMode}
"""What Pillow calls them; its nearest is the exact one."""

ORDERLESS = {InterpolationMode.NEAREST, InterpolationMode.NEAREST_EXACT}
"""Interpolations without sums, and so without passes."""


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
        self.device = device_of(args)
        keep_freed_memory()
        try:
            self.resize_size = integers(parameters["resize_size"])
            self.crop_size = pair(integers(parameters["crop_size"]))
            self.interpolation = InterpolationMode(parameters["interpolation"])
            mean, std = (torch.tensor(floats(parameters[name]), device=self.device) for name in ("mean", "std"))
            # (x / 255 - mean) / std as one multiplication and one addition.
            self.scale = (1 / (255 * std)).reshape(1, 3, 1, 1)
            self.bias = (-mean / std).reshape(1, 3, 1, 1)
        except (KeyError, ValueError, RuntimeError) as exc:
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
        self.dtype = TYPES[output["data_type"]]
        if any(crop > resized for crop, resized in zip(self.crop_size, pair(self.resize_size), strict=True)):
            raise pb_utils.TritonModelException(
                "crop_size is larger than resize_size: the crop would have black borders"
            )

        try:
            library, resize = parameters["resize_library"], (self.resize_size, self.crop_size, self.interpolation)
            self.torch = TorchResize(*resize) if library == "torch" else None
            self.pillow = None if self.torch else PillowResize(*resize, library)
        except (KeyError, ValueError) as exc:
            raise pb_utils.TritonModelException(f"a parameter is missing or not understood: {exc}") from exc

        # The first image takes the libraries' set-up on itself.
        encoded = cv2.imencode(".ppm", np.zeros((8, 8, 3), np.uint8))[1]
        self._batch([self._decode_row(encoded, len(encoded))[1]])
        resizer = self.pillow.described() if self.pillow else "torch"
        pb_utils.Logger.log_info(f"{args['model_instance_name']} runs on {self.device}, resizes with {resizer}")

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request on its own: an exception from here would fail all that were batched with it."""
        answers = [self._decode_request(request) for request in requests]
        images = [image for answer in answers if isinstance(answer, list) for _, image in answer]
        try:
            batch = self._batch(images)
        except Exception:
            end_if_gpu_is_lost(self.device)
            raise
        responses, start = [], 0
        for answer in answers:
            if isinstance(answer, pb_utils.TritonError):
                responses.append(pb_utils.InferenceResponse(error=answer))
                continue
            rows = batch[start : start + len(answer)]
            start += len(answer)
            status = torch.tensor([[status] for status, _ in answer], dtype=torch.int32)
            responses.append(
                pb_utils.InferenceResponse(
                    [
                        # DLPack both ways: the backend's own conversion to numpy is built against numpy 1.
                        pb_utils.Tensor.from_dlpack("PREPROCESSED_IMAGE", rows),
                        pb_utils.Tensor.from_dlpack("IMAGE_STATUS", status),
                    ]
                )
            )
        return responses

    def _decode_request(
        self, request: "pb_utils.InferenceRequest"
    ) -> "list[tuple[Status, Tensor | None]] | pb_utils.TritonError":
        """A (status, image) for each row of a request, or the error that stands for all of it."""
        try:
            raw_image, length = (
                torch.from_dlpack(pb_utils.get_input_tensor_by_name(request, name).to_dlpack())
                for name in ("RAW_IMAGE", "RAW_IMAGE_LENGTH")
            )
            rows = zip(raw_image.numpy(), length.flatten().tolist(), strict=True)
            return [self._decode_row(encoded, length) for encoded, length in rows]
        except Exception as exc:  # the requests batched with this one keep their answers
            end_if_gpu_is_lost(self.device)
            return pb_utils.TritonError(f"preprocessor: {type(exc).__name__}: {exc}")

    def _decode_row(self, encoded: NDArray[np.uint8], length: int) -> tuple[Status, Tensor | None]:
        """The row's Status and its image, uint8 [3, H, W], or None where the status is not OK."""
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
        if self.pillow:
            return Status.OK, torch.from_numpy(self.pillow(pixels)).permute(2, 0, 1)
        assert self.torch is not None
        return Status.OK, self.torch(torch.from_numpy(pixels).permute(2, 0, 1).to(self.device))

    def _batch(self, images: list[Tensor | None]) -> Tensor:
        """All images of a batch [N, 3, H, W], normalised where they are to be; zeros where there is none."""
        batch = torch.empty((len(images), 3, *self.crop_size), dtype=self.dtype, device=self.device)
        for row, image in zip(batch, images, strict=True):
            if image is not None:
                row.copy_(image)
        if self.dtype is torch.float32:
            batch.mul_(self.scale).add_(self.bias)
        for row, image in zip(batch, images, strict=True):
            if image is None:
                row.zero_()
        return batch


class TorchResize:
    """Resize and CenterCrop as torchvision has them for tensors, on the tensor's device."""

    def __init__(self, size: list[int], crop: list[int], interpolation: InterpolationMode) -> None:
        # Here and not above: it takes as long to import as torch, and Pillow's resize does without it.
        from torchvision.transforms import InterpolationMode as TheirMode
        from torchvision.transforms.v2 import functional

        self.size, self.crop, self.interpolation = size, crop, TheirMode(interpolation.value)
        self.functional = functional

    def __call__(self, image: Tensor) -> Tensor:
        """uint8 [3, H, W] of any size → uint8 of crop_size."""
        image = self.functional.resize(image, self.size, self.interpolation, antialias=True)
        return self.functional.center_crop(image, self.crop)


class PillowResize:
    """Resize and CenterCrop as torchvision has them for PIL images: by exact_resize where it makes the same pixels.

    `library` is "pillow" for the installed one, or such as "pillow-12.1" for the one that training had: they differ in
    which pass comes first. Raises ValueError where it is another.
    """

    def __init__(self, size: list[int], crop: list[int], interpolation: InterpolationMode, library: str) -> None:
        found = re.fullmatch(r"pillow(?:-(\d{1,3})\.(\d{1,3}))?", library)
        if found is None:
            raise ValueError(f"resize_library {library!r} is not torch, pillow, or a Pillow's version: pillow-12.1")
        self.size, self.crop, self.interpolation = size, crop, interpolation
        installed = tuple(map(int, PIL.__version__.split(".")[:2]))
        self.release: tuple[int, int] = (int(found[1]), int(found[2])) if found[1] else installed
        self.installed = found[1] is None
        self.why_not = self._why_not()

    def described(self) -> str:
        """What resizes, for the log."""
        wanted = "as Pillow {}.{} does".format(*self.release)
        if not self.why_not:
            return f"exact_resize ({exact_resize.instructions()}), {wanted}"
        return f"Pillow {PIL.__version__}, {wanted}, because {self.why_not}"

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """uint8 [H, W, 3] of any size → uint8 of crop_size."""
        return self._by_pillow(pixels) if self.why_not else self._by_kernel(pixels)

    def _by_kernel(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        size = self._resized(pixels)
        corner = self._corner(size)
        target = np.empty((*self.crop, 3), np.uint8)
        exact_resize.resize(pixels, target, size, filter=self.interpolation.value, corner=corner, pillow=self.release)
        return target

    def _by_pillow(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        image, size, method = Image.fromarray(pixels), self._resized(pixels), FILTERS[self.interpolation]
        if not self.installed and self.interpolation not in ORDERLESS:
            # One side after the other: resized alone, neither has an order.
            vertical_first = self._vertical_first(pixels, size)
            first = (image.width, size[0]) if vertical_first else (size[1], image.height)
            image = image.resize(first, method)
        image = image.resize((size[1], size[0]), method)
        top, left = self._corner(size)
        return np.array(image.crop((left, top, left + self.crop[1], top + self.crop[0])))

    def _corner(self, size: tuple[int, int]) -> tuple[int, int]:
        """Where the crop begins, top and left, rounded as torchvision rounds it."""
        return round((size[0] - self.crop[0]) / 2), round((size[1] - self.crop[1]) / 2)

    def _resized(self, pixels: NDArray[np.uint8]) -> tuple[int, int]:
        """Height and width after the resize, rounded as torchvision rounds them."""
        if len(self.size) == 2:
            return self.size[0], self.size[1]
        shorter, longer = sorted(pixels.shape[:2])
        ends = int(self.size[0] * longer / shorter)
        return (ends, self.size[0]) if pixels.shape[0] > pixels.shape[1] else (self.size[0], ends)

    def _vertical_first(self, pixels: NDArray[np.uint8], size: tuple[int, int]) -> bool:
        height, width = pixels.shape[:2]
        if self.release >= (13, 0):
            return height > size[0] and height - size[0] > 2 * (width - size[1])
        return self.release >= (12, 2) and height > size[0] and height > 100 * width

    def _why_not(self) -> str:
        """Why the kernel is not to be used; "" where it is."""
        if self.interpolation in ORDERLESS:
            return f"exact_resize has no {self.interpolation.value}"
        if exact_resize is None:
            return "exact_resize is not installed; the pixels are the same, the time is six times its"
        generator = np.random.default_rng(0)
        for shape in PROBES:
            pixels = generator.integers(0, 256, (*shape, 3), np.uint8)
            if not np.array_equal(self._by_kernel(pixels), self._by_pillow(pixels)):
                return (
                    f"exact_resize makes other pixels of {shape[0]} by {shape[1]} on this machine: please report that"
                )
        return ""


def without_ends(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The middle of an image [H, W, 3] whose longer side is more than MAX_ASPECT times its shorter one.

    Resized by its shorter side, an image of 16384 by 1 would take gigabytes, of which the centre crop keeps a speck.
    """
    height, width = pixels.shape[:2]
    longest = MAX_ASPECT * min(height, width)
    top, left = max(0, (height - longest) // 2), max(0, (width - longest) // 2)
    # As much from one end as from the other, so that the centre stays where it is.
    return pixels[top : height - top, left : width - left]


def keep_freed_memory() -> None:
    """Have malloc keep the buffers of a picture for the next one: fresh pages are up to half of the time."""
    libc = ctypes.CDLL(None)
    # No mappings at all: a threshold for them is capped at 32 MiB, less than a picture of 12 megapixels.
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def device_of(args: dict[str, str]) -> torch.device:
    """The torch device of this instance; raises TritonModelException where it should be a GPU and torch has none."""
    if args["model_instance_kind"] != "GPU":
        return torch.device("cpu")
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


def pair(sizes: list[int]) -> list[int]:
    """Height and width, where one number stands for both."""
    return (sizes * 2)[:2]


def integers(text: str) -> list[int]:
    """The numbers in text such as 256 or 256,320."""
    return [int(part) for part in text.split(",")]


def floats(text: str) -> list[float]:
    """The numbers in text such as 0.485,0.456,0.406."""
    return [float(part) for part in text.split(",")]
