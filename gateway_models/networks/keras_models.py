"""Models of Keras 3, .keras and HDF5, which Keras runs by torch, in a process of its own."""

import json
import os
import re
import tempfile
import zipfile
from collections.abc import Mapping
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
"""Classes that contain code, or load it from other files, for the error message: all that is not listed is refused."""
_LAYER_NAMES = """
    Activation ActivityRegularization AdaptiveAveragePooling1D AdaptiveAveragePooling2D AdaptiveAveragePooling3D
    AdaptiveMaxPooling1D AdaptiveMaxPooling2D AdaptiveMaxPooling3D Add AdditiveAttention AlphaDropout Attention
    AugMix AutoContrast Average AveragePooling1D AveragePooling2D AveragePooling3D AvgPool1D AvgPool2D AvgPool3D
    BatchNormalization Bidirectional CategoryEncoding CenterCrop Concatenate
    ContrastLimitedAdaptiveHistogramEqualization Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D
    Conv3DTranspose ConvLSTM1D ConvLSTM2D ConvLSTM3D Convolution1D Convolution1DTranspose Convolution2D
    Convolution2DTranspose Convolution3D Convolution3DTranspose Cropping1D Cropping2D Cropping3D CutMix Dense
    DepthwiseConv1D DepthwiseConv2D Discretization Dot Dropout ELU EinsumDense Embedding Equalization Flatten
    GRU GRUCell GaussianDropout GaussianNoise GlobalAveragePooling1D GlobalAveragePooling2D
    GlobalAveragePooling3D GlobalAvgPool1D GlobalAvgPool2D GlobalAvgPool3D GlobalMaxPool1D GlobalMaxPool2D
    GlobalMaxPool3D GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D GroupNormalization
    GroupQueryAttention Identity InputLayer LSTM LSTMCell LayerNormalization LayerScale LeakyReLU Masking MaxPool1D
    MaxPool2D MaxPool3D MaxPooling1D MaxPooling2D MaxPooling3D Maximum Minimum MixUp MultiHeadAttention Multiply
    Normalization PReLU Permute Pipeline RMSNormalization RNN RandAugment RandomBrightness
    RandomColorDegeneration RandomColorJitter RandomContrast RandomCrop RandomElasticTransform RandomErasing
    RandomFlip RandomGaussianBlur RandomGrayscale RandomHue RandomInvert RandomPerspective RandomPosterization
    RandomRotation RandomSaturation RandomSharpness RandomShear RandomTranslation RandomZoom ReLU RepeatVector
    Rescaling Reshape Resizing ReversibleEmbedding SeparableConv1D SeparableConv2D SeparableConvolution1D
    SeparableConvolution2D SimpleRNN SimpleRNNCell Softmax Solarization SpatialDropout1D SpatialDropout2D
    SpatialDropout3D SpectralNormalization StackedRNNCells StochasticDepth Subtract TimeDistributed UnitNormalization
    UpSampling1D UpSampling2D UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D
"""
LAYERS = frozenset(_LAYER_NAMES.split())
"""The classes of keras.layers and keras.applications that compute with tensors and nothing else."""
MODELS = frozenset({"Functional", "Model", "Sequential"})
_PART_NAMES = """
    Constant GlorotNormal GlorotUniform HeNormal HeUniform IdentityInitializer LecunNormal LecunUniform Ones Orthogonal
    OrthogonalInitializer RandomNormal RandomUniform TruncatedNormal VarianceScaling Zeros L1 L2 L1L2
    OrthogonalRegularizer MaxNorm MinMaxNorm NonNeg UnitNorm DTypePolicy DTypePolicyMap FloatDTypePolicy
    QuantizedDTypePolicy Policy
"""
PARTS = frozenset(_PART_NAMES.split())
"""What layers are described by, where a description names no module, as in HDF5."""
VALUES = frozenset(
    {
        "TensorShape",
        "__bytes__",
        "__ellipsis__",
        "__keras_tensor__",
        "__numpy__",
        "__slice__",
        "__tensor__",
        "__tuple__",
    }
)
"""Values of JSON that are no classes."""
FILES = ("vocabulary", "vocabulary_file")
"""Settings of layers that may name a file to read."""
_LAYERS = re.compile(r"keras(\.(src\.)?(applications|layers|models)(\.[a-z0-9_]+)*)?")
_PARTS = re.compile(
    r"keras\.(src\.)?(activations|constraints|dtype_policies|initializers|losses|metrics|optimizers|quantizers|random"
    r"|regularizers|ops\.(image|linalg|math|nn|numpy))(\.[a-z0-9_]+)*"
)


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
            # Keras chooses the reader by the name, which need not fit the content.
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
    for key in FILES:
        if isinstance(config.get(key), str):
            raise ModelFileError(f"it reads the file {config[key]!r}: a classifier of images needs none")
    name, module = config.get("class_name"), config.get("module")
    if name is not None and not _is_known(name, module, config):
        last = str(name).rpartition(".")[2]
        if last in CODE:
            raise ModelFileError(
                f"it has a {last} layer, which is code. If its author may run code here, add --trust; or replace it by "
                "layers of Keras, such as Rescaling"
            )
        raise ModelFileError(
            f"it has {name} of the module {module}, which is not Keras's own, or not one of its layers for images. If "
            "its author may run code here and the module can be imported, add --trust"
        )
    for part in config.values():
        check_config(part)


def _is_known(name: object, module: object, config: Mapping[str, object]) -> bool:
    """Whether a description's class or function is one that only computes.

    Keras joins the module and the name and looks the result up: `keras` and `layers.Lambda` are `keras.layers.Lambda`.
    """
    is_function = name == "function"
    name = config.get("config") if is_function else name
    registered = config.get("registered_name")
    if not isinstance(name, str) or not name.isidentifier() or (isinstance(registered, str) and ">" in registered):
        return False
    listed = name in LAYERS | MODELS | PARTS
    if module is None or module in ("", "builtins"):
        return name not in CODE if is_function else listed or name in VALUES
    if not isinstance(module, str):
        return False
    return (bool(_LAYERS.fullmatch(module)) and listed) or (bool(_PARTS.fullmatch(module)) and name not in CODE)


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
