"""Opens models of other libraries and converts them to ONNX by the library's own converter.

Only child processes call these functions: opening a file may run its code, which needs --trust where `file_kinds` says
so. A converted network is compared with the answers of its library.
"""

import math
import os
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gateway_models.networks import onnx_graph
from gateway_models.networks.adapted import chosen
from gateway_models.networks.errors import ModelError, first_line
from gateway_models.networks.file_kinds import FileKind
from gateway_models.networks.job_checks import report
from gateway_models.repository.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Network:
    """A model that its own library has loaded.

    `run` gives the library's own scores [N, classes] of images in the network's input format. `write` writes the
    network as ONNX for images of a side in pixels. `labels` are those in the file, () where it has none.
    """

    run: Callable[[Tensor], Tensor]
    write: Callable[[Path, int], None]
    labels: tuple[str, ...] = ()


def open_network(kind: FileKind, spec: ModelSpec) -> Network:
    """Load the model of a spec by its library; raises ModelError."""
    openers = {each.__name__: each for each in (keras_model, sklearn_pickle, skops_pipeline)}
    return openers[kind.opener](spec, f" Or {kind.advice(Path(spec.source))}")


def keras_model(spec: ModelSpec, elsewhere: str) -> Network:
    """A model of Keras 3, .keras or HDF5, which Keras runs by torch. Code in it runs only with `trust`."""
    path = Path(spec.source)
    # Keras reads these when it is imported.
    os.environ.setdefault("KERAS_BACKEND", "torch")
    os.environ.setdefault("KERAS_TORCH_DEVICE", "cpu")
    import keras

    if keras.backend.backend() != "torch":
        raise ModelError("Keras is set to run by another library: unset KERAS_BACKEND")
    try:
        with tempfile.TemporaryDirectory(prefix="keras-") as folder:
            # Keras chooses the reader by the name, which need not fit the content.
            named = Path(folder) / f"model{'.keras' if zipfile.is_zipfile(path) else '.h5'}"
            named.symlink_to(path)
            model = keras.saving.load_model(named, compile=False, safe_mode=not spec.trust)
    except Exception as exc:  # of Keras, h5py and the model's own classes
        trust = " If its author may run code here, add --trust." * ("safe_mode" in str(exc) and not spec.trust)
        reason = first_line(str(exc).rpartition("Exception encountered: ")[2])
        raise ModelError(f"Keras {keras.__version__} cannot load it: {reason}.{trust}{elsewhere}") from exc
    network = _Keras(model, spec.output)

    def write(target: Path, side: int) -> None:
        import onnx

        shape = model.input_shape
        if not isinstance(shape, tuple) or len(shape) != 4:
            raise ModelError(f"it takes {shape}, but a batch of images [N, {side}, {side}, 3] is expected")
        example = torch.rand((2, *(size or side for size in shape[1:])))
        onnx.save(onnx_graph.from_module(network, side, example=example, advice=elsewhere.strip()), target)

    return Network(torch.no_grad()(network), write)


class _Keras(nn.Module):
    """A model of Keras as a module of torch that gives one tensor."""

    def __init__(self, model: Any, output: str) -> None:  # noqa: ANN401  # keras is imported where it is used
        super().__init__()
        # Not as a submodule: torch leaves aliases of operators in a trace of submodules, which it cannot write as ONNX.
        self._models = (model.requires_grad_(requires_grad=False).eval(),)
        self._output = output

    def forward(self, images: Tensor) -> Tensor:
        # With training=True, augmentation layers would change the images.
        return chosen(self._models[0](images, training=False), self._output)


def sklearn_pickle(spec: ModelSpec, elsewhere: str) -> Network:
    """A pipeline of scikit-learn in a pickle, which can run any code."""
    import joblib

    return _pipeline(lambda: joblib.load(spec.source), elsewhere)


def skops_pipeline(spec: ModelSpec, elsewhere: str) -> Network:
    """A pipeline in a file of skops; types that skops does not trust are loaded only with `trust`."""
    from skops import io

    try:
        unknown = io.get_untrusted_types(file=spec.source)
    except Exception as exc:  # of skops, json and zipfile
        raise ModelError(f"skops cannot read it: {first_line(exc)}") from exc
    if unknown and not spec.trust:
        raise ModelError(
            f"it has types that skops does not trust: {', '.join(unknown)}. If its author may run code here, add "
            "--trust"
        )
    return _pipeline(lambda: io.load(spec.source, trusted=unknown), elsewhere)


def _pipeline(load: Callable[[], Any], elsewhere: str) -> Network:
    """A classifier of scikit-learn for images fp32 [N, height, width, channels], row by row of their pixels."""
    import sklearn

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            pipeline = load()
        except Exception as exc:  # its code may raise anything
            raise ModelError(
                f"scikit-learn {sklearn.__version__} cannot load it: {type(exc).__name__}: "
                f"{first_line(exc)}.{elsewhere}"
            ) from exc
    if any(each.category.__name__ == "InconsistentVersionWarning" for each in caught):
        report(
            f"warning: another release of scikit-learn wrote it than the installed {sklearn.__version__}, and its "
            "answers may differ: install that release, or save it again"
        )
    if not hasattr(pipeline, "predict_proba"):
        raise ModelError(
            f"it is a {type(pipeline).__name__} without predict_proba: a classifier that gives probabilities, or a "
            "pipeline that ends in one, is expected; CalibratedClassifierCV makes one of any classifier"
        )

    def run(images: Tensor) -> Tensor:
        scores = pipeline.predict_proba(images.reshape(len(images), -1).numpy())
        if not isinstance(scores, np.ndarray) or scores.ndim != 2:
            raise ModelError("it gives several answers for an image, but one probability a class is expected")
        return torch.from_numpy(scores.astype(np.float32))

    def write(target: Path, side: int) -> None:
        import onnx
        from skl2onnx import to_onnx
        from skl2onnx.common.data_types import FloatTensorType

        size = int(pipeline.n_features_in_)
        channels = _channels(size, side, elsewhere)
        try:
            model = to_onnx(
                pipeline,
                initial_types=[("flat", FloatTensorType([None, size]))],
                options={"zipmap": False},
                target_opset={"": 18, "ai.onnx.ml": 3},
            )
        except Exception as exc:  # skl2onnx has no common base class
            raise ModelError(f"skl2onnx cannot convert it: {first_line(exc)}.{elsewhere}") from exc
        helper, numbers, graph = onnx.helper, onnx.TensorProto, model.graph
        graph.initializer.append(helper.make_tensor("pixels/shape", numbers.INT64, [2], [-1, size]))
        graph.node.insert(0, helper.make_node("Reshape", ["pixels", "pixels/shape"], ["flat"]))
        scores = graph.output[-1]
        del graph.input[:], graph.output[:]
        graph.input.append(helper.make_tensor_value_info("pixels", numbers.FLOAT, ["N", side, side, channels]))
        graph.output.append(scores)
        onnx.save(model, target)

    return Network(run, write, tuple(str(each) for each in getattr(pipeline, "classes_", ())))


def _channels(size: int, side: int, elsewhere: str) -> int:
    """The channels of images of `side` pixels that are `size` numbers; raises ModelError for another size."""
    for channels, option in ((1, " --grayscale"), (3, "")):
        other = math.isqrt(size // channels)
        if channels * other * other == size:
            if other == side:
                return channels
            raise ModelError(f"it takes {size} numbers for an image: use --crop {other}{option}")
    raise ModelError(
        f"it takes {size} numbers for an image, which are not the pixels of a square one: they are computed before the "
        f"pipeline.{elsewhere}"
    )
