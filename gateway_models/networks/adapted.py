"""Adapters between the preprocessor and networks with another input format or several outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gateway_models.networks.errors import ModelError
from gateway_models.repository.spec import PLAIN, ModelSpec

GRAY_ADVICE = "use --grayscale, which converts images as Pillow does"
PIXELS = 255
LUMA = (19595.0, 38470.0, 7471.0)
"""Weights of red, green and blue in 65536ths, as in Pillow's convert("L") (Convert.c), after ITU-R BT.601."""


@dataclass(frozen=True, slots=True)
class Gray:
    """Mean and std of a network for gray images; the preprocessor normalised all three channels with them."""

    mean: float
    std: float


@dataclass(frozen=True, slots=True)
class Form:
    """A network's input format: one of spec.INPUTS, in colour or gray."""

    input: str = PLAIN
    gray: Gray | None = None


def known_form(spec: ModelSpec) -> Form:
    """The input format that a completed spec names; its `input` is "" where it has to be detected."""
    prepared = spec.prepared
    return Form(spec.input, Gray(prepared.mean[0], prepared.std[0]) if spec.grayscale else None)


def arranged(images: Tensor, form: Form) -> Tensor:
    """Convert images fp32 [N, 3, H, W] to a network's input format; for uint8 they must be pixels of 0 to 255."""
    if form.gray:
        images = _gray(images, form.gray)
    dtype, _, order = form.input.partition("-")
    if dtype == "uint8":
        images = images.round().clamp(0, PIXELS).to(torch.uint8)
    return images.permute(0, 2, 3, 1).contiguous() if order == "nhwc" else images


def chosen(output: object, which: str) -> Tensor:
    """The scores among a network's outputs, by name or number; raises ModelError that lists the outputs."""
    if isinstance(output, Tensor):
        if which not in {"", "0"}:
            raise ModelError(f"it has one output, so --output {which} selects nothing: leave it out")
        return output
    parts = _parts(output)
    tensors = {name: part for name, part in parts.items() if isinstance(part, Tensor)}
    if not which and len(parts) == len(tensors) == 1:
        return next(iter(tensors.values()))
    if which in tensors:
        return tensors[which]
    if which.isdecimal() and int(which) < len(parts):
        part = list(parts.values())[int(which)]
        if isinstance(part, Tensor):
            return part
    there = ", ".join(f"{name} {list(part.shape)}" for name, part in tensors.items()) or "none of them a tensor"
    lacks = f"has no output {which!r} among " if which else "gives "
    raise ModelError(
        f"it {lacks}a {type(output).__name__} of {len(parts)} ({there}) but one tensor of scores is expected: choose "
        "it with --output NAME, or by its number from 0"
    )


def flat(scores: Tensor) -> Tensor:
    """Scores [N, classes] from [N, classes, 1, 1], as DenseNet and SqueezeNet in ONNX's zoo give them."""
    return scores.flatten(1) if scores.dim() == 4 and scores.shape[2:] == (1, 1) else scores


class Adapted(nn.Module):
    """Wraps a network as images fp32 [N, 3, H, W] → one tensor; `dtype` is the type that it computes in."""

    def __init__(self, network: nn.Module, form: Form, output: str) -> None:
        super().__init__()
        self.network, self.form, self.output = network, form, output
        self.dtype = torch.float32

    def forward(self, images: Tensor) -> Tensor:
        """Scores [N, classes]."""
        return flat(chosen(self.network(self.taken(images)), self.output))

    def taken(self, images: Tensor) -> Tensor:
        """Images in the network's input format and dtype."""
        images = arranged(images, self.form)
        return images.to(self.dtype) if images.is_floating_point() else images


class Normalising(nn.Module):
    """Wraps a network for normalised images as one for pixels uint8 [N, 3, H, W]; `mean` and `std` are in 0 to 1."""

    scale: Tensor
    bias: Tensor

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        # The same arithmetic as in the preprocessor, so that both give the same floats.
        deviation = torch.tensor(std)
        self.register_buffer("scale", (1 / (PIXELS * deviation)).reshape(1, 3, 1, 1))
        self.register_buffer("bias", (-torch.tensor(mean) / deviation).reshape(1, 3, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        """The network's output for pixels uint8 [N, 3, H, W]."""
        images = pixels.to(torch.float32) * self.scale + self.bias
        # Only here: on channels-last pixels, the two operations above take three times as long on a CPU.
        answer: Tensor = self.network(images.contiguous(memory_format=torch.channels_last))
        return answer


def _gray(images: Tensor, gray: Gray) -> Tensor:
    """Convert to gray as Pillow's convert("L") does, and normalise again: fp32 [N, 1, H, W]."""
    pixels = ((images * gray.std + gray.mean) * PIXELS).round()
    # All intermediate values are whole numbers below 2**24: exact in fp32, so the result is bit-identical to Pillow's.
    red, green, blue = (pixels[:, channel : channel + 1] * weight for channel, weight in enumerate(LUMA))
    sums = red + green + blue
    levels = ((sums + 32768.0) / 65536.0).floor()
    return (levels / PIXELS - gray.mean) / gray.std


def _parts(output: object) -> dict[str, object]:
    if isinstance(output, Mapping):
        return {str(name): part for name, part in output.items()}
    if isinstance(output, (list, tuple)):
        return {str(number): part for number, part in enumerate(output)}
    raise ModelError(f"it gives a {type(output).__name__}, but a tensor of scores is expected")
