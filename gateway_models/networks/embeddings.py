"""Embeddings: the input of the last linear layer of an ONNX model; their requirements and differences."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gateway.triton.contract import CLASSIFIER_FEATURES
from gateway_models.networks.adapted import flat
from gateway_models.networks.errors import ModelError
from gateway_models.networks.onnx_graph import BATCH, INNER, constants_of, from_module
from gateway_models.networks.onnx_runner import import_onnx, session_of
from gateway_models.networks.probe import ALONE_TOLERANCE, probe_batches

ADVICE = "--embeddings gives the input of the last linear layer: end the network in one, trained or not"
NO_LENGTH = 1e-5
"""An embedding shorter than this part of the longest one is rounding noise, such as the embedding of an even image."""

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


def pair_runner(model: Any, scores: str, embeddings: str) -> Callable[[Tensor], tuple[Tensor, Tensor]]:  # noqa: ANN401
    """Wrap a model, or the file of one, as images → scores and embeddings; see onnx_runner.runner."""
    onnx, _ = import_onnx()
    loaded = onnx.load(model) if isinstance(model, Path) else model
    run = session_of(exposing(loaded, scores, embeddings), [scores, embeddings])

    def both(images: Tensor) -> tuple[Tensor, Tensor]:
        answers, inner = run(images)
        return flat(answers), inner

    return both


def embeddings_of(module: nn.Module, side: int) -> Callable[[Tensor], Tensor]:
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
    """The tensor with the embeddings of a model with the output `scores`; raises ModelError."""
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
    raise ModelError(f"{last}, not a linear one: {ADVICE}")


def check_embeddings(run: Callable[[Tensor], tuple[Tensor, Tensor]], side: int, *, pixels: bool) -> int:
    """The size of each embedding; raises ModelError where it depends on other images or not on its own image."""
    batches = probe_batches(side, pixels=pixels)
    batch = torch.cat(batches[:3])
    together = run(batch)[1].float()
    if together.dim() != 2 or len(together) != len(batch):
        raise ModelError(f"its embeddings have the shape {list(together.shape)} for a batch of {len(batch)}: {ADVICE}")
    if not torch.isfinite(together).all():
        raise ModelError("its embeddings have NaN or infinity for ordinary images: were its weights loaded?")
    alone = torch.cat([run(image[None])[1].float() for image in batch])
    if not torch.allclose(together, alone, atol=ALONE_TOLERANCE * max(1.0, float(together.abs().max()))):
        raise ModelError(f"the embedding of an image depends on the others in its batch: {ADVICE}")
    # The embeddings of noise may all be zero vectors.
    others = run(torch.cat(batches[3:]))[1].float()
    if not (together - others[0]).any() and not (others - others[0]).any():
        raise ModelError(f"its embeddings are the same for every image: {ADVICE}")
    return int(together.shape[1])


def embedding_difference(served: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest difference of embeddings: 1 minus the smallest cosine of an image's two embeddings.

    A zero vector has no direction: it equals another vector whose length is at most `NO_LENGTH` of the longest.
    """
    one, other = torch.cat(list(served)).double(), torch.cat(list(expected)).double()
    lengths = torch.stack((one.norm(dim=1), other.norm(dim=1)))
    cosines = torch.nn.functional.cosine_similarity(one, other, dim=1, eps=1e-30)
    cosines = torch.where((lengths <= NO_LENGTH * lengths.max()).all(dim=0), 1.0, cosines)
    return max(0.0, 1.0 - float(cosines.min()))
