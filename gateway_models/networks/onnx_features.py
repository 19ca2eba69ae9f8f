"""Embeddings of an ONNX model: the input of its last linear layer."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.triton.contract import CLASSIFIER_FEATURES
from gateway_models.networks.adapted import flat
from gateway_models.networks.features import ADVICE
from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.onnx_graph import BATCH, INNER, constants_of, from_module
from gateway_models.networks.onnx_runner import import_onnx, session_of

if TYPE_CHECKING:
    from torch import Tensor, nn

_PASSING = frozenset(
    {"Cast", "Clip", "Dropout", "Exp", "Flatten", "Identity", "LogSoftmax", "Reshape", "Sigmoid", "Softmax", "Squeeze"}
    | {"QuantizeLinear", "DequantizeLinear"}
)
"""Operators between the last layer and the scores."""
_LINEAR = frozenset({"Gemm", "MatMul"})


def exposing(model: Any, *tensors: str) -> Any:  # noqa: ANN401
    """A copy of a model whose outputs are these tensors, in this order; they may be inner tensors."""
    onnx, _ = import_onnx()
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    outputs = {tensor.name: tensor for tensor in model.graph.output}
    del copy.graph.output[:]
    copy.graph.output.extend(outputs.get(name) or onnx.ValueInfoProto(name=name) for name in tensors)
    return copy


def pair_runner(model: Any, scores: str, embeddings: str) -> "Callable[[Tensor], tuple[Tensor, Tensor]]":  # noqa: ANN401
    """Wrap a model, or the file of one, as images → scores and embeddings; see onnx_runner.runner."""
    onnx, _ = import_onnx()
    loaded = onnx.load(model) if isinstance(model, Path) else model
    run = session_of(exposing(loaded, scores, embeddings), [scores, embeddings])

    def both(images: "Tensor") -> "tuple[Tensor, Tensor]":
        answers, inner = run(images)
        return flat(answers), inner

    return both


def embeddings_of(module: "nn.Module", side: int) -> "Callable[[Tensor], Tensor]":
    """The embeddings [N, size] of images, by the ONNX form of a module for images fp32 [N, 3, side, side]."""
    model = from_module(module, side)
    scores = model.graph.output[0].name
    run = pair_runner(model, scores, inner_tensor(model, scores))
    return lambda images: run(images)[1]


def add_embedding(model: Any, tensor: str, size: int) -> Any:  # noqa: ANN401
    """Add the output `output__1` fp32 [N, size] to a finished model, made from a tensor of the model itself."""
    onnx, _ = import_onnx()
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    model.graph.node.append(helper.make_node("Cast", [INNER + tensor], [CLASSIFIER_FEATURES], to=float32))
    model.graph.output.append(helper.make_tensor_value_info(CLASSIFIER_FEATURES, float32, [BATCH, size]))
    return model


def inner_tensor(model: Any, scores: str) -> str:  # noqa: ANN401  # onnx is imported where it is used
    """The tensor with the embeddings of a model with the output `scores`; raises ModelFileError."""
    makers = {name: node for node in model.graph.node for name in node.output}
    constants, name = constants_of(model), scores
    while (node := makers.get(name)) is not None:
        given = [each for each in node.input if each not in constants]
        if node.op_type in _LINEAR and len(given) >= 1:
            return str(node.input[0])
        if node.op_type not in _PASSING and not (node.op_type == "Add" and len(given) == 1):
            break
        name = given[0]
    last = f"its last layer is {node.op_type}" if node is not None else "its scores come from no layer"
    raise ModelFileError(f"{last}, not a linear one: {ADVICE}")
