"""ONNX files: inspected, finished with what is missing, and written with the tensor names of the contract."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.errors import UserError
from gateway.files import whole_file
from gateway.networks.files import ModelFileError
from gateway.networks.trial import Ending
from gateway.triton.contract import CLASSIFIER_INPUT, CLASSIFIER_OUTPUT

if TYPE_CHECKING:
    from torch import Tensor, nn

OPSET = 17
"""The oldest that has all that torchvision's classifiers need; older runtimes read it too."""
BATCH = "N"
_ACTIVATIONS = {
    (Ending.LOGITS, False): ("Softmax", {"axis": 1}),
    (Ending.LOG_SOFTMAX, False): ("Exp", {}),
    (Ending.LOGITS, True): ("Sigmoid", {}),
}
"""(ending, multi-label) → the operator that is missing; others need none."""


class OnnxMissing(UserError):
    """The packages for ONNX are not installed."""


def import_onnx() -> tuple[Any, Any]:
    """The modules onnx and onnxruntime; raises OnnxMissing."""
    try:
        import onnx
        import onnxruntime
    except ImportError as exc:
        raise OnnxMissing(f"ONNX needs {exc.name}: pip install 'triton-image-gateway[onnx]'") from exc
    return onnx, onnxruntime


def load_onnx(path: Path) -> Any:  # noqa: ANN401  # onnx is imported where it is used
    """Read and check an ONNX model; raises ModelFileError."""
    onnx, _ = import_onnx()
    try:
        model = onnx.load(path)
        onnx.checker.check_model(model)
    except Exception as exc:  # of protobuf, of onnx, of the file system
        raise ModelFileError(f"{path} cannot be read as an ONNX model: {str(exc).strip().splitlines()[0]}") from exc
    return model


def check_signature(model: Any, side: int) -> None:  # noqa: ANN401
    """Raise ModelFileError unless a model takes fp32 or fp16 [N, 3, side, side], of any N, and gives one tensor."""
    onnx, _ = import_onnx()
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [given for given in model.graph.input if given.name not in weights]
    if len(inputs) != 1 or len(model.graph.output) != 1:
        raise ModelFileError(
            f"it has {len(inputs)} inputs and {len(model.graph.output)} outputs, but one of each is expected: "
            "export the classifier alone"
        )
    for tensor in (inputs[0], model.graph.output[0]):
        kind = onnx.TensorProto.DataType.Name(tensor.type.tensor_type.elem_type)
        if kind not in {"FLOAT", "FLOAT16"}:
            raise ModelFileError(f"tensor {tensor.name!r} is {kind}, but FLOAT or FLOAT16 is expected")
    dims = [(dim.dim_param or "?") if not dim.dim_value else dim.dim_value for dim in _dims(inputs[0])]
    if len(dims) != 4:
        raise ModelFileError(f"it takes {dims}, but a batch of images [N, 3, {side}, {side}] is expected")
    if isinstance(dims[0], int):
        raise ModelFileError(
            f"it takes a fixed batch of {dims[0]}: export it again with the first dimension dynamic "
            "(torch.onnx.export(…, dynamic_axes={'input': {0: 'N'}, 'output': {0: 'N'}}))"
        )
    if dims[1] not in {3, "?"} and isinstance(dims[1], int):
        hint = "is it in the order N, height, width, channels? " if dims[3] == 3 else ""
        raise ModelFileError(
            f"it takes {dims}, but images have their three channels first, [N, 3, {side}, {side}]: {hint}"
            "export it again so that it accepts these"
        )
    wrong = [dim for dim in dims[2:] if isinstance(dim, int) and dim != side]
    if wrong:
        raise ModelFileError(f"it takes {dims[2]}×{dims[3]} but the crop is {side}×{side}: use --crop {dims[2]}")


def finish(model: Any, ending: Ending, *, multi_label: bool, side: int, classes: int) -> Any:  # noqa: ANN401
    """The same model from `input__0` fp32 [N, 3, side, side] to probabilities `output__0` fp32 [N, classes]."""
    onnx, _ = import_onnx()
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    (given,) = [tensor for tensor in graph.input if tensor.name not in weights]
    (result,) = graph.output
    casts = [
        helper.make_node("Cast", [CLASSIFIER_INPUT], [_inner(given.name)], to=given.type.tensor_type.elem_type),
        helper.make_node("Cast", [_inner(result.name)], ["gateway/scores"], to=float32),
    ]
    # Under names of its own what is inside cannot clash with the contract's.
    _rename(graph, {name: _inner(name) for name in (given.name, result.name)})
    operator, attributes = _ACTIVATIONS.get((ending, multi_label), ("Identity", {}))
    last = helper.make_node(operator, ["gateway/scores"], [CLASSIFIER_OUTPUT], **attributes)
    nodes = [casts[0], *graph.node, casts[1], last]
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend(nodes)
    graph.input.append(helper.make_tensor_value_info(CLASSIFIER_INPUT, float32, [BATCH, 3, side, side]))
    graph.output.append(helper.make_tensor_value_info(CLASSIFIER_OUTPUT, float32, [BATCH, classes]))
    # Before version 4 weights had to be inputs as well.
    model.ir_version = max(4, model.ir_version)
    # Shapes that were inferred under the old names are not needed, and could contradict the new ones.
    del graph.value_info[:]
    return model


def to_fp16(model: Any) -> Any:  # noqa: ANN401
    """A finished model that computes in fp16 and still takes and gives fp32."""
    import_onnx()
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    # Not a softmax over many classes: its sum is lost in fp16.
    converted = convert_float_to_float16(model, keep_io_types=True, op_block_list=["Softmax", "Sigmoid", "Exp"])
    # The converter appends its casts at the end, and ONNX wants nodes in the order of their use.
    OnnxModel(converted).topological_sort()
    return converted


def from_module(module: "nn.Module", side: int) -> Any:  # noqa: ANN401
    """The ONNX form of an eager or TorchScript module from fp32 [N, 3, side, side]; raises ModelFileError."""
    onnx, _ = import_onnx()
    import torch

    from gateway.networks.torchscript import without_deprecations

    with tempfile.TemporaryDirectory(prefix="onnx-") as folder:
        path = Path(folder) / "model.onnx"
        try:
            with torch.no_grad(), without_deprecations():
                example = torch.rand((2, 3, side, side))
                torch.onnx.export(
                    # The exporter copies an eager module, which those around TorchScript do not survive.
                    torch.jit.freeze(torch.jit.trace(module.eval(), example)),  # type: ignore[no-untyped-call]
                    (example,),
                    path,
                    input_names=["images"],
                    output_names=["answers"],
                    dynamic_axes={"images": {0: BATCH}, "answers": {0: BATCH}},
                    opset_version=OPSET,
                    # The exporter that also takes TorchScript, and needs no further package.
                    dynamo=False,
                )
        except Exception as exc:  # the exporter raises all kinds
            reason = str(exc).strip().splitlines()[0]
            raise ModelFileError(f"torch cannot write it as ONNX: {reason}. Use --format torchscript") from exc
        return onnx.load(path)


def write(model: Any, path: Path) -> None:  # noqa: ANN401
    """Write a checked model to `path`, which takes its name only when all of it is there."""
    onnx, _ = import_onnx()
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, mode=0o644) as draft:
        onnx.save(model, draft)


def runner(model: Any) -> "Callable[[Tensor], Tensor]":  # noqa: ANN401
    """A model, or the path of one, as a function of tensors, run by ONNX Runtime on the CPU; raises ModelFileError."""
    _, onnxruntime = import_onnx()
    import torch

    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as exc:  # ONNX Runtime has no common base class
        raise ModelFileError(f"ONNX Runtime cannot run it: {str(exc).strip().splitlines()[0]}") from exc
    given = session.get_inputs()[0]
    dtype = torch.float16 if "float16" in given.type else torch.float32

    def run(images: "Tensor") -> "Tensor":
        return torch.from_numpy(session.run(None, {given.name: images.to(dtype).numpy()})[0])

    return run


def _dims(tensor: Any) -> list[Any]:  # noqa: ANN401
    return list(tensor.type.tensor_type.shape.dim)


def _inner(name: str) -> str:
    return f"network/{name}"


def _rename(graph: Any, new: dict[str, str]) -> None:  # noqa: ANN401
    """Give tensors other names wherever nodes use them, in the graphs inside of If and Loop as well."""
    for node in graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                names[index] = new.get(name, name)
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                _rename(inner, new)
