"""Heat maps from a network's own gradients, by captum: Grad-CAM and integrated gradients."""

import numpy as np
import torch
from captum.attr import IntegratedGradients, LayerGradCam
from numpy.typing import NDArray
from torch import Tensor, nn

from gateway_models.networks.originals import NoGradients

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
    return NoGradients(f"the network gives no gradients ({exc}): use --method rise or occlusion")


def _plane(values: Tensor) -> NDArray[np.float32]:
    """The values of one image, fp32 [1, channels, rows, columns], added up over its channels."""
    plane: NDArray[np.float32] = values.detach().float().sum(dim=1)[0].numpy()
    return plane
