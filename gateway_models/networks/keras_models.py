"""Models of Keras 3, .keras and HDF5, which Keras runs by torch, in a process of its own."""

import json
import os
import re
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gateway_models.networks import onnx_graph
from gateway_models.networks.adapted import chosen
from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.frameworks import Description, framework_named
from gateway_models.repository.spec import ModelSpec

MAX_CONFIG_BYTES = 64 * 2**20
"""The size limit of a network's description as JSON."""
CODE = frozenset({"Lambda", "__lambda__", "TorchModuleWrapper", "FlaxLayer", "JaxLayer", "TFSMLayer"})
"""Classes that contain code, or load it from other files."""
FILES = ("vocabulary", "vocabulary_file")
"""Settings of layers that may name a file to read."""
_KERAS = re.compile(r"keras(\.|$)")
_BUILT_IN = {None, "", "builtins"}


def open_keras(spec: ModelSpec) -> "KerasNetwork":
    """Load a model of Keras; raises ModelFileError. Its own code runs only with `trust`."""
    path = Path(spec.source)
    # Keras reads these when it is imported. It runs its networks by torch, which is there, and on the CPU.
    os.environ.setdefault("KERAS_BACKEND", "torch")
    os.environ.setdefault("KERAS_TORCH_DEVICE", "cpu")
    import keras

    if keras.backend.backend() != "torch":
        raise ModelFileError("Keras is set to run by another library: unset KERAS_BACKEND")
    if not spec.trust:
        check_config(_config(path))
    try:
        with tempfile.TemporaryDirectory(prefix="keras-") as folder:
            # Keras goes by the name, which need not be that of the content.
            named = Path(folder) / f"model{'.keras' if zipfile.is_zipfile(path) else '.h5'}"
            named.symlink_to(path)
            model = keras.saving.load_model(named, compile=False, safe_mode=not spec.trust)
    except Exception as exc:  # of Keras, h5py and the model's own classes
        raise ModelFileError(f"Keras {keras.__version__} cannot load it: {_first(exc)}. {_elsewhere(path)}") from exc
    return KerasNetwork(model, spec)


class KerasNetwork(nn.Module):
    """A model of Keras as a module of torch, from images in its own input format to one tensor."""

    def __init__(self, model: Any, spec: ModelSpec) -> None:  # noqa: ANN401  # keras is imported where it is used
        super().__init__()
        # Not as a submodule: torch leaves aliases of operators in a trace of submodules, which it cannot write as ONNX.
        self._models = (model.requires_grad_(requires_grad=False).eval(),)
        self.spec = spec
        self.description = Description()

    def forward(self, images: Tensor) -> Tensor:
        """Scores [N, classes]."""
        # Without training=False, augmentation layers change the images.
        return chosen(self._models[0](images, training=False), self.spec.output)

    def __call__(self, images: Tensor) -> Tensor:
        """The same, without gradients."""
        with torch.no_grad():
            scores: Tensor = super().__call__(images)
        return scores

    def write_onnx(self, path: Path, side: int) -> None:
        """Write the network as ONNX for images of `side` pixels in its own input format; raises ModelFileError."""
        import onnx

        shape = self._models[0].input_shape
        if not isinstance(shape, tuple) or len(shape) != 4:
            raise ModelFileError(f"it takes {shape}, but a batch of images [N, {side}, {side}, 3] is expected")
        example = torch.rand((2, *(size or side for size in shape[1:])))
        onnx.save(onnx_graph.from_module(self, side, example=example, advice=_elsewhere(Path(self.spec.source))), path)


def check_config(config: object) -> None:
    """Raise ModelFileError where a network's description names code, or a file to read."""
    if isinstance(config, list):
        for part in config:
            check_config(part)
    if not isinstance(config, dict):
        return
    name, module = config.get("class_name"), config.get("module")
    if isinstance(name, str):
        if name in CODE:
            raise ModelFileError(
                f"it has a {name} layer, which is code. If its author may run code here, add --trust; or replace it by "
                "layers of Keras, such as Rescaling"
            )
        if module not in _BUILT_IN and not (isinstance(module, str) and _KERAS.match(module)):
            raise ModelFileError(
                f"it has {name} of the module {module}, which is not Keras's own. If its author may run code here and "
                "the module can be imported, add --trust"
            )
    for key in FILES:
        if isinstance(config.get(key), str):
            raise ModelFileError(f"it reads the file {config[key]!r}: a classifier of images needs none")
    for part in config.values():
        check_config(part)


def _config(path: Path) -> object:
    """The description of a network in its file; raises ModelFileError."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive, archive.open("config.json") as file:
                text = file.read(MAX_CONFIG_BYTES + 1)
        else:
            import h5py

            with h5py.File(path) as file:
                text = file.attrs["model_config"]
                text = text.encode() if isinstance(text, str) else bytes(text)
        if len(text) > MAX_CONFIG_BYTES:
            raise ModelFileError(f"its description has more than {MAX_CONFIG_BYTES // 2**20} MiB")
        return json.loads(text)
    except (OSError, KeyError, ValueError, RecursionError, zipfile.BadZipFile) as exc:
        raise ModelFileError(f"its description cannot be read: {exc}") from exc


def _first(exc: Exception) -> str:
    """The reason of an error of Keras, without the arguments that it lists."""
    lines = str(exc).strip().splitlines() or [type(exc).__name__]
    return lines[0][:300].rstrip(".")


def _elsewhere(path: Path) -> str:
    framework = framework_named("keras")
    assert framework is not None
    advice = framework.by_hand(path)
    return advice[0].upper() + advice[1:]
