"""What runs a model's network: for users, by the configuration that Triton returns."""

from collections.abc import Mapping

from gateway.triton.contract import CPU_RUNTIME_PARAMETER, TORCHSCRIPT
from gateway.triton.model_config import ModelConfig, ModelInstanceGroup

OWN_BACKEND = "model.py"
"""Triton's `runtime` of a Python-based backend, such as this project's own; NVIDIA's is a shared library."""


def network_runtime(network: ModelConfig, ensemble: Mapping[str, str]) -> str | None:
    """The name of the runtime; None if the configuration names no backend.

    `network` is the configuration of an ensemble's network as Triton completed it: with the kinds of instances that
    exist, and with the file of the backend. `ensemble` has the parameters of the ensemble.
    """
    on_cpu = all(group.kind == ModelInstanceGroup.KIND_CPU for group in network.instance_group)
    if network.backend == "onnxruntime" and on_cpu:
        accelerators = network.optimization.execution_accelerators.cpu_execution_accelerator
        return str(accelerators[0].name if accelerators else network.backend)
    if network.backend != "pytorch":
        return str(network.backend) or None
    if network.runtime != OWN_BACKEND:
        return "libtorch"
    if network.default_model_filename.endswith(".pt2"):
        return "torch-export"
    return ensemble.get(CPU_RUNTIME_PARAMETER, TORCHSCRIPT) if on_cpu else TORCHSCRIPT
