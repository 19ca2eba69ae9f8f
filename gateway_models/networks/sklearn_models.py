"""Pipelines of scikit-learn, which skl2onnx converts, in a process of their own."""

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.frameworks import Description, framework_named
from gateway_models.networks.job_checks import report
from gateway_models.repository.spec import ModelSpec

OPSET = 18
"""The version of ONNX's operators; skl2onnx chooses the version of ai.onnx.ml."""
PIXELS, FLAT = "pixels", "flat"


def open_pickle(spec: ModelSpec) -> "Pipeline":
    """Unpickle a pipeline, which can run any code; raises ModelFileError."""
    import joblib

    return _opened(spec, lambda: joblib.load(spec.source))


def open_skops(spec: ModelSpec) -> "Pipeline":
    """Load a file of skops; types that skops does not trust only with `trust`. Raises ModelFileError."""
    from skops import io

    try:
        unknown = io.get_untrusted_types(file=spec.source)
    except Exception as exc:  # of skops, json and zipfile
        raise ModelFileError(f"skops cannot read it: {str(exc).strip().splitlines()[0]}") from exc
    if unknown and not spec.trust:
        raise ModelFileError(
            f"it has types that skops does not trust: {', '.join(unknown)}. If its author may run code here, add "
            "--trust"
        )
    return _opened(spec, lambda: io.load(spec.source, trusted=unknown))


def _opened(spec: ModelSpec, load: Any) -> "Pipeline":  # noqa: ANN401
    import sklearn

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            pipeline = load()
        except Exception as exc:  # whatever its code raises
            raise ModelFileError(
                f"scikit-learn {sklearn.__version__} cannot load it: {type(exc).__name__}: "
                f"{(str(exc).strip().splitlines() or [''])[0]}. If it uses code of your own, {_by_function(spec)}"
            ) from exc
    if any(each.category.__name__ == "InconsistentVersionWarning" for each in caught):
        report(
            f"warning: another release of scikit-learn wrote it than the installed {sklearn.__version__}, and its "
            "answers may differ: install that release, or save it again"
        )
    if not hasattr(pipeline, "predict_proba"):
        kind = type(pipeline).__name__
        raise ModelFileError(
            f"its {kind} has no predict_proba, so it gives no probabilities: train it with one that has, such as "
            "LogisticRegression, or put CalibratedClassifierCV around it"
            if hasattr(pipeline, "predict")
            else f"it is a {kind}, but a classifier or a pipeline that ends in one is expected: save that alone"
        )
    return Pipeline(spec, pipeline)


class Pipeline:
    """A classifier of scikit-learn, for images fp32 [N, height, width, channels], row by row of their pixels."""

    def __init__(self, spec: ModelSpec, pipeline: Any) -> None:  # noqa: ANN401  # sklearn is imported where it is used
        self._spec, self._pipeline = spec, pipeline
        self.description = Description(tuple(str(each) for each in getattr(pipeline, "classes_", ())))

    def __call__(self, images: Tensor) -> Tensor:
        """Its own probabilities [N, classes]."""
        scores = self._pipeline.predict_proba(images.reshape(len(images), -1).numpy())
        if not isinstance(scores, np.ndarray) or scores.ndim != 2:
            raise ModelFileError("it gives several answers for an image, but one probability a class is expected")
        return torch.from_numpy(scores.astype(np.float32))

    def write_onnx(self, path: Path, side: int) -> None:
        """Write the pipeline as ONNX from images of `side` pixels; raises ModelFileError."""
        import onnx
        from skl2onnx import to_onnx
        from skl2onnx.common.data_types import FloatTensorType

        size = int(self._pipeline.n_features_in_)
        channels = self._channels(size, side)
        try:
            model = to_onnx(
                self._pipeline,
                initial_types=[(FLAT, FloatTensorType([None, size]))],
                options={"zipmap": False},
                target_opset={"": OPSET, "ai.onnx.ml": 3},
            )
        except Exception as exc:  # skl2onnx has no common base class
            reason = str(exc).strip().splitlines()[0].rstrip(".")
            raise ModelFileError(f"skl2onnx cannot convert it: {reason}. Instead, {_by_function(self._spec)}") from exc
        helper, numbers = onnx.helper, onnx.TensorProto
        graph = model.graph
        shape = helper.make_tensor(f"{PIXELS}/shape", numbers.INT64, [2], [-1, size])
        graph.initializer.append(shape)
        graph.node.insert(0, helper.make_node("Reshape", [PIXELS, shape.name], [FLAT]))
        scores = graph.output[-1]
        del graph.input[:], graph.output[:]
        graph.input.append(helper.make_tensor_value_info(PIXELS, numbers.FLOAT, ["N", side, side, channels]))
        graph.output.append(scores)
        onnx.save(model, path)

    def _channels(self, size: int, side: int) -> int:
        """The channels of its images; raises ModelFileError where it does not take all pixels of an image."""
        channels = {side * side: 1, 3 * side * side: 3}.get(size)
        if channels:
            return channels
        for channels, option in ((1, " --grayscale"), (3, "")):
            other = math.isqrt(size // channels)
            if channels * other * other == size:
                raise ModelFileError(
                    f"it takes {size} numbers for an image, and {side}×{side} pixels are {side * side} of one channel: "
                    f"use --crop {other}{option}"
                )
        raise ModelFileError(
            f"it takes {size} numbers for an image, which are not the pixels of a square one: they are computed before "
            f"the pipeline. Instead, {_by_function(self._spec)}"
        )


def _by_function(spec: ModelSpec) -> str:
    """The advice on serving a pipeline by a Python function."""
    framework = framework_named("sklearn")
    assert framework is not None
    return framework.by_hand(Path(spec.source))
