"""Models of a Triton that take tensors."""

from gateway.hooks import Plugin
from gateway.plugins.tensors.settings import TensorSettings


class Tensors(Plugin):
    """Models of a Triton that take tensors; the core reads them from the settings, as `Section.tensor_models`."""

    settings = TensorSettings
