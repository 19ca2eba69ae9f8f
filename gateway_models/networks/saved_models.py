"""SavedModel folders of TensorFlow, which TensorFlow loads, in a process of its own, and tf2onnx converts."""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gateway_models.networks.adapted import chosen
from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.frameworks import Description
from gateway_models.networks.onnx_graph import OPSET
from gateway_models.repository.spec import ModelSpec

SIGNATURES = ("serving_default", "serve")
"""The names of the signature that answers, as TensorFlow and Keras write it."""
QUIET = "3"
"""The level of TensorFlow's log that has errors alone."""


def open_saved_model(spec: ModelSpec) -> "SavedModel":
    """Load a SavedModel, which may read and write files; raises ModelFileError."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", QUIET)
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    import tensorflow as tf

    try:
        loaded = tf.saved_model.load(spec.source)
    except Exception as exc:  # of TensorFlow
        raise ModelFileError(f"TensorFlow {tf.__version__} cannot load it: {str(exc).strip().splitlines()[0]}") from exc
    found = dict(loaded.signatures)
    name = next((name for name in SIGNATURES if name in found), "")
    if not name:
        raise ModelFileError(
            f"it has no signature serving_default, only {', '.join(found) or 'none'}: export it again with "
            "model.export('folder') of Keras"
        )
    return SavedModel(spec, loaded, found[name], name)


class SavedModel:
    """A signature of a SavedModel; `loaded` keeps its variables alive."""

    def __init__(self, spec: ModelSpec, loaded: Any, signature: Any, name: str) -> None:  # noqa: ANN401
        self.description = Description()
        self._spec, self._loaded, self._signature, self._name = spec, loaded, signature, name
        inputs = signature.structured_input_signature[1]
        if len(inputs) != 1:
            raise ModelFileError(f"it has {len(inputs)} inputs, but one is expected: export the classifier alone")
        ((self._input, self._given),) = inputs.items()

    def __call__(self, images: Tensor) -> Tensor:
        """TensorFlow's scores [N, classes] of images in the network's input format."""
        import tensorflow as tf

        given = tf.constant(images.numpy(), dtype=self._given.dtype)
        answers = self._signature(**{self._input: given})
        return chosen({name: torch.from_numpy(np.asarray(each)) for name, each in answers.items()}, self._spec.output)

    def write_onnx(self, path: Path, side: int) -> None:
        """Write the signature as ONNX with its own input format; raises ModelFileError."""
        import onnx
        import tf2onnx.convert

        arguments = ["--saved-model", self._spec.source, "--signature_def", self._name]
        before = sys.argv
        sys.argv = ["tf2onnx", *arguments, "--opset", str(OPSET), "--output", str(path)]
        try:
            tf2onnx.convert.main()
        except Exception as exc:  # of TensorFlow and tf2onnx
            reason = str(exc).strip().splitlines()[0]
            raise ModelFileError(
                f"tf2onnx cannot convert it: {reason}. Add the model of Keras that it was exported from, if there is "
                "one: `gateway model add model.keras`"
            ) from exc
        finally:
            sys.argv = before
        model = onnx.load(path)
        if drawn := sorted({node.op_type for node in model.graph.node if "Random" in node.op_type}):
            raise ModelFileError(
                f"it draws random numbers ({', '.join(drawn)}): layers that augment images, or dropout, are active in "
                "it. Export it again with training=False; or add the model of Keras itself: "
                "`gateway model add model.keras`"
            )
        answers = self._signature.structured_outputs
        if len(answers) > 1:
            # tf2onnx keeps the order of the names, and not the names themselves.
            kept = _index(list(answers), self._spec.output)
            output = model.graph.output[kept]
            del model.graph.output[:]
            model.graph.output.append(output)
        _sized(model, side)
        onnx.save(model, path)


def _index(names: list[str], which: str) -> int:
    """The number of the output that is wanted; raises ModelFileError that lists the outputs."""
    if which in names:
        return names.index(which)
    if which.isdecimal() and int(which) < len(names):
        return int(which)
    raise ModelFileError(
        f"it has {len(names)} outputs ({', '.join(names)}): choose the scores with --output NAME, or by their number "
        "from 0"
    )


def _sized(model: Any, side: int) -> None:  # noqa: ANN401
    """Open the batch of a graph that leaves all of its dimensions open, and name its sides."""
    dims = model.graph.input[0].type.tensor_type.shape.dim
    if len(dims) == 4 and dims[3].dim_value in {1, 3}:
        for dim in dims[1:3]:
            if not dim.dim_value:
                dim.dim_value = side
