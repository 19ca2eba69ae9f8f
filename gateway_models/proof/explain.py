"""`gateway model explain`: the parts of an image that carry the score of a class, by the gradients of the network."""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from captum.attr import IntegratedGradients, LayerGradCam
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from gateway.errors import UserError
from gateway_decoder.masking import overlay_of
from gateway_models.networks.originals import NoGradients, differentiable
from gateway_models.networks.probe import Ending, activation
from gateway_models.proof.parity import pil_image
from gateway_models.repository.class_names import ClassNames
from gateway_models.repository.entry import Entry
from gateway_models.repository.preprocessing import Preprocessing, reference_transforms

MAP_SIDE = 448
"""Pixels of the longer side of a map of a whole image."""
JSON_SIDE = 28
STEPS = 32
"""Images between the black one and the explained one, for integrated gradients."""
STEPS_AT_ONCE = 8


def grad_cam(network: nn.Module, image: Tensor, class_id: int) -> NDArray[np.float32]:
    """The map [rows, columns] of the last convolution that sees where things are, from 0 up (Selvaraju et al., 2017).

    `image` is fp32 [1, 3, side, side]. Raises NoGradients if the network has no such convolution.
    """
    explainer = LayerGradCam(network, _last_convolution(network, image))
    try:
        values: Tensor = explainer.attribute(image.clone().requires_grad_(), class_id, relu_attributions=True)
    except RuntimeError as exc:
        raise _no_gradients(exc) from exc
    return _plane(values)


def integrated_gradients(network: nn.Module, image: Tensor, class_id: int) -> NDArray[np.float32]:
    """The part of each pixel in the score, [side, side] (Sundararajan et al., 2017), by the midpoint rule.

    The baseline is 0, the mean colour of the training images. `image` is fp32 [1, 3, side, side]. Raises NoGradients.
    """
    try:
        values: Tensor = IntegratedGradients(network).attribute(
            image, target=class_id, n_steps=STEPS, method="riemann_middle", internal_batch_size=STEPS_AT_ONCE
        )
    except RuntimeError as exc:
        raise _no_gradients(exc) from exc
    return _plane(values)


def _last_convolution(network: nn.Module, image: Tensor) -> nn.Module:
    """The last convolution with an output of more than one pixel; raises NoGradients."""
    found: list[nn.Module] = []

    def keep(module: nn.Module, _inputs: object, output: Tensor) -> None:
        if output.ndim == 4 and output.shape[2] * output.shape[3] > 1:
            found[:] = [module]

    hooks = [each.register_forward_hook(keep) for each in network.modules() if isinstance(each, nn.Conv2d)]
    try:
        with torch.no_grad():
            network(image)
    finally:
        for hook in hooks:
            hook.remove()
    if not found:
        raise NoGradients(
            "Grad-CAM needs a network of torch with convolutions whose modules are known, and TorchScript hides them: "
            "use --method integrated-gradients"
        )
    return found[0]


def _no_gradients(exc: RuntimeError) -> NoGradients:
    """The error of a network without gradients, such as one that was saved within torch.no_grad()."""
    return NoGradients(f"the network gives no gradients ({exc}): use POST /explain")


def _plane(values: Tensor) -> NDArray[np.float32]:
    """The values of one image, fp32 [1, channels, rows, columns], added up over its channels."""
    plane: NDArray[np.float32] = values.detach().float().sum(dim=1)[0].numpy()
    return plane


METHODS: Mapping[str, Callable[[nn.Module, Tensor, int], NDArray[np.float32]]] = {
    "grad-cam": grad_cam,
    "integrated-gradients": integrated_gradients,
}


class NotExplained(UserError):
    """The image cannot be read, or the model has no such class."""


@dataclass(frozen=True, slots=True, eq=False)
class Explained:
    """The heat map of one class: `values` are fp32 [rows, columns] over the whole `image`."""

    model: str
    version: int
    label: str
    class_id: int
    score: float
    method: str
    values: NDArray[np.float32]
    image: Image.Image

    def as_json(self) -> str:
        """All but the image, as a JSON document, with a map of JSON_SIDE cells on each side."""
        cells = np.asarray(Image.fromarray(self.values).resize((JSON_SIDE, JSON_SIDE), Image.Resampling.BOX))
        fields = {name: getattr(self, name) for name in ("model", "version", "label", "class_id", "score", "method")}
        return json.dumps({**fields, "values": [[round(each, 6) for each in row] for row in cells.tolist()]})

    def picture(self) -> Image.Image:
        """The image with the map over it."""
        heat = Image.open(io.BytesIO(overlay_of(self.values, self.image.height, self.image.width)))
        over = heat.convert("RGBA").resize(self.image.size)
        return Image.alpha_composite(self.image.convert("RGBA"), over).convert("RGB")


def explain(
    entry: Entry, version: int, path: Path, method: str, labels: Sequence[str], wanted: str | None
) -> Explained:
    """Explain by the original network of a version; `wanted` is a label or a number, None for the likeliest class.

    Raises NotExplained, NoGradients, and what `original_answers` raises.
    """
    try:
        image = pil_image(path)
    except OSError as exc:
        raise NotExplained(f"{path} cannot be read: {exc}") from exc
    found = entry.versions[version]
    network = differentiable(found)
    tensor = reference_transforms(entry.preprocessing)(image)[None]
    activate = activation(Ending(found.outcome.ending), multi_label=found.spec.multi_label)
    with torch.no_grad():
        scores = activate(network(tensor).float())[0].numpy()
    names = ClassNames(labels)
    class_id = int(scores.argmax()) if wanted is None else names.find(wanted)
    if class_id is None:
        raise NotExplained(f"the model has no class {wanted!r}; it has {names.some}")
    values = spread(METHODS[method](network, tensor, class_id), image.size, entry.preprocessing)
    return Explained(entry.name, version, labels[class_id], class_id, float(scores[class_id]), method, values, image)


def spread(values: NDArray[np.float32], size: tuple[int, int], preprocessing: Preprocessing) -> NDArray[np.float32]:
    """A map of what the network sees, as one of the whole image of `size` (width, height): 0 where it is cropped."""
    width, height = size
    scale = MAP_SIDE / max(width, height)
    across, down = max(1, round(width * scale)), max(1, round(height * scale))
    if len(preprocessing.resize_size) == 2:
        resized_height, resized_width = map(float, preprocessing.resize_size)
    else:
        shorter = preprocessing.resize_size[0] / min(width, height)
        resized_height, resized_width = height * shorter, width * shorter
    seen_across = max(1, round(across * min(1, preprocessing.crop_size / resized_width)))
    seen_down = max(1, round(down * min(1, preprocessing.crop_size / resized_height)))
    seen = Image.fromarray(np.ascontiguousarray(values, np.float32))
    whole: NDArray[np.float32] = np.zeros((down, across), np.float32)
    top, left = (down - seen_down) // 2, (across - seen_across) // 2
    whole[top : top + seen_down, left : left + seen_across] = np.asarray(
        seen.resize((seen_across, seen_down), Image.Resampling.BILINEAR)
    )
    return whole
