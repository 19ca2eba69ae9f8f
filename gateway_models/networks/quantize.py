"""Quantizes ONNX models to int8 with QDQ nodes; sample images calibrate the ranges of activations."""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.errors import UserError
from gateway.triton.contract import CLASSIFIER_INPUT
from gateway_local.cpu_features import has_vnni
from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.onnx_graph import load_onnx
from gateway_models.networks.onnx_runner import import_onnx
from gateway_plugins.shared.files import whole_file

QUANTIZED = (
    *("Conv", "Gemm", "MatMul", "Add", "Mul", "Relu", "Clip", "Concat", "Pad", "Reshape", "Flatten", "Transpose"),
    *("AveragePool", "GlobalAveragePool", "MaxPool"),
)
"""Operators to quantize. Not softmax and sigmoid: 256 levels are too few for probabilities."""
OURS = "gateway/"
"""Prefix of the tensors that `onnx_graph.finish` adds around a network; these are not quantized."""


def quantize(model: Path, images: Iterable[NDArray[np.float32 | np.uint8]], target: Path) -> None:
    """Write a finished model in int8 to `target`; raises ModelFileError if ONNX Runtime cannot quantize it.

    Each of `images` is [1, 3, side, side] in the model's input type. They run one after another, and
    only the smallest and largest value of each tensor are kept, so memory does not grow with their number.
    """
    onnx, _ = import_onnx()
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory(prefix="int8-") as folder:
        prepared = Path(folder) / "prepared.onnx"
        try:
            # Folds constants and batch normalisation. Classifiers do not need its symbolic shapes.
            quant_pre_process(str(model), str(prepared), skip_symbolic_shape=True)
            onnx.save(ours := named(load_onnx(prepared)), prepared)
            with whole_file(target, mode=0o644) as draft:
                quantization.quantize_static(
                    str(prepared),
                    str(draft),
                    _CalibrationImages(iter(images)),
                    quant_format=quantization.QuantFormat.QDQ,
                    op_types_to_quantize=list(QUANTIZED),
                    nodes_to_exclude=[node.name for node in ours.graph.node if is_ours(node)],
                    per_channel=True,
                    # Without VNNI the sums of two products saturate at 16 bits, unless weights have 7 bits.
                    reduce_range=not has_vnni(),
                    activation_type=quantization.QuantType.QUInt8,
                    weight_type=quantization.QuantType.QInt8,
                    calibrate_method=quantization.CalibrationMethod.MinMax,
                )
        except UserError:
            raise
        except Exception as exc:  # ONNX Runtime has no common base class
            reason = str(exc).strip().splitlines()
            raise ModelFileError(
                f"ONNX Runtime cannot quantize it: {reason[0] if reason else type(exc).__name__}"
            ) from exc


def named(model: Any) -> Any:  # noqa: ANN401
    """The model with a name for each node, so that nodes can be excluded."""
    for number, node in enumerate(model.graph.node):
        node.name = f"node{number}"
    return model


def is_ours(node: Any) -> bool:  # noqa: ANN401
    """Whether `onnx_graph.finish` added a node; these compute pixels and probabilities."""
    return any(name.startswith(OURS) for name in node.output)


class _CalibrationImages:
    """Implements ONNX Runtime's CalibrationDataReader."""

    def __init__(self, images: Iterator[NDArray[np.float32 | np.uint8]]) -> None:
        self._images = images

    def get_next(self) -> dict[str, NDArray[np.float32 | np.uint8]] | None:
        """The next input, or None after the last."""
        image = next(self._images, None)
        return None if image is None else {CLASSIFIER_INPUT: image}
