"""Inspects ONNX models, completes them for serving, and writes them with the tensor names of the contract."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gateway.triton.contract import CLASSIFIER_INPUT, CLASSIFIER_OUTPUT
from gateway.values.files import whole_file
from gateway_models.networks.adapted import GRAY_ADVICE, LUMA, PIXELS, Form
from gateway_models.networks.errors import ModelError, first_line
from gateway_models.networks.onnx_runner import import_onnx
from gateway_models.networks.probe import Ending, activation_name
from gateway_models.repository.spec import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor, nn

ANY_BATCH = (
    "export it again with the first dimension dynamic: torch.onnx.export(model, (images,), 'model.onnx', dynamo=True, "
    "dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), external_data=False), which needs onnxscript"
)
OPSET = 17
"""The oldest opset with all operators of torchvision's classifiers, so that older runtimes can read it."""
OLDEST_OPSET = 11
"""Version of ONNX's operators with Round, and with Clip by inputs."""
BATCH = "N"
LEAST_WIDTH, MOST_WIDTHS = 0.1, 10.0
"""Images with a smaller range, or farther from 0 than MOST_WIDTHS times their range, are scaled wrongly."""
OWN_SCALE = 1.5
"""A network that multiplies by more around a centre between 0 and 1 normalises images of 0 to 1."""
_AFFINE: dict[str, Callable[[Any, Any, Any], tuple[Any, Any]]] = {
    "Mul": lambda scale, shift, value: (scale * value, shift * value),
    "Div": lambda scale, shift, value: (scale / value, shift / value),
    "Add": lambda scale, shift, value: (scale, shift + value),
    "Sub": lambda scale, shift, value: (scale, shift - value),
}
_SAME_VALUES = frozenset(
    {"Cast", "Flatten", "Identity", "Pad", "Reshape", "Resize", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators that leave the values of images as they are, or mix neighbours."""
INNER = "network/"
"""Prefix of the model's own tensors in a finished model."""
ARRANGED = "gateway/arranged"
"""Prefix of the nodes that convert `input__0` to a model's input format."""
_ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("Softmax", {"axis": 1}),
    "sigmoid": ("Sigmoid", {}),
    "exp": ("Exp", {}),
    "none": ("Identity", {}),
}
"""The operators of probe.ACTIVATIONS, with their attributes."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A model's input format, the name of the output with its scores, and whether it takes one image at a time."""

    form: Form
    output: str
    one_by_one: bool


def load_onnx(path: Path) -> Any:  # noqa: ANN401  # onnx is imported where it is used
    """Read and check an ONNX model; raises ModelError.

    onnx refuses weights outside of the model's folder, and ONNX Runtime the operators of other libraries.
    """
    onnx, _ = import_onnx()
    try:
        model = onnx.load(path)
        onnx.checker.check_model(model)
    except Exception as exc:  # protobuf, onnx and the file system have no common base class
        raise ModelError(f"{path} cannot be read as an ONNX model: {first_line(exc)}") from exc
    return model


def constants_of(model: Any) -> dict[str, Any]:  # noqa: ANN401
    """The constant tensors of a model, by name."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    return constants | {node.output[0]: node.attribute[0].t for node in model.graph.node if node.op_type == "Constant"}


def _inputs(model: Any) -> list[Any]:  # noqa: ANN401
    """The inputs without the weights, which old models have among them."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [given for given in model.graph.input if given.name not in weights]


def _with_round(model: Any) -> Any:  # noqa: ANN401
    """The model in a version of ONNX that has Round, and a Clip by inputs."""
    onnx, _ = import_onnx()
    versions = [each.version for each in model.opset_import if each.domain in {"", "ai.onnx"}]
    if not versions or min(versions) >= OLDEST_OPSET:
        return model
    try:
        return onnx.version_converter.convert_version(model, OLDEST_OPSET)
    except Exception as exc:  # the converter's errors have no common base class
        raise ModelError(
            f"is written for version {min(versions)} of ONNX's operators and cannot be converted to {OLDEST_OPSET}: "
            "export it again"
        ) from exc


def check_signature(model: Any, side: int, known: Form = Form(""), output: str = "") -> Signature:  # noqa: ANN401, B008
    """Check that a model takes images of `side` pixels, nchw or nhwc, and return its signature.

    `known` is the input format where the user named it. Raises ModelError for other inputs or outputs.
    """
    onnx, _ = import_onnx()
    inputs = _inputs(model)
    if len(inputs) != 1:
        raise ModelError(f"it has {len(inputs)} inputs, but one is expected: export the classifier alone")
    result = _output(model, output)
    if result.type.WhichOneof("value") != "tensor_type":
        raise ModelError(
            f"its output {result.name!r} is no tensor but maps of labels, as ZipMap makes them. Serve it by a Python "
            "function: docs/guides/model-sources.md, Custom Vision"
        )
    kinds = [onnx.TensorProto.DataType.Name(tensor.type.tensor_type.elem_type) for tensor in (inputs[0], result)]
    floats = ("FLOAT", "FLOAT16")
    for tensor, kind, allowed in zip((inputs[0], result), kinds, ((*floats, "UINT8"), floats), strict=True):
        if kind not in allowed:
            raise ModelError(f"tensor {tensor.name!r} is {kind}, but {' or '.join(allowed)} is expected")
    dims = [(dim.dim_param or "?") if not dim.dim_value else dim.dim_value for dim in _dims(inputs[0])]
    if len(dims) != 4:
        raise ModelError(f"it takes {dims}, but a batch of images [N, 3, {side}, {side}] is expected")
    if isinstance(dims[0], int) and dims[0] != 1:
        raise ModelError(f"it takes a fixed batch of {dims[0]}: {ANY_BATCH}")
    channels = 1 if known.gray else 3
    last = dims[1] not in {channels, "?"} and isinstance(dims[1], int) and dims[3] in {channels, "?"}
    sides = dims[1:3] if last else dims[2:]
    if not last and isinstance(dims[1], int) and dims[1] != channels:
        hint = f": {GRAY_ADVICE}" if 1 in {dims[1], dims[3]} else ""
        raise ModelError(
            f"it takes {dims}, but images have three channels, [N, 3, {side}, {side}] or [N, {side}, {side}, 3]"
            f"{hint or ': export it again so that it accepts these'}"
        )
    if len({dim for dim in sides if isinstance(dim, int)}) > 1:
        raise ModelError(f"it takes {sides[0]}×{sides[1]}, but only squares are served: export it for one")
    if any(isinstance(dim, int) and dim != side for dim in sides):
        raise ModelError(f"it takes {sides[0]}×{sides[1]} but the crop is {side}×{side}: use --crop {sides[0]}")
    found = f"{'uint8' if kinds[0] == 'UINT8' else 'float32'}-{'nhwc' if last else 'nchw'}"
    # Where the graph leaves every dimension open, only the user can know the format.
    return Signature(Form(known.input or found, known.gray), result.name, isinstance(dims[0], int))


def check_scale(model: Any, spec: ModelSpec) -> None:  # noqa: ANN401
    """Raise ModelError if a model's own scaling of its images reduces them to nearly nothing.

    Follows its first operators as long as they multiply and add, as Rescaling and Normalization of Keras do.
    `--input` overrides this check.
    """
    onnx, _ = import_onnx()
    constants = constants_of(model)
    (name,) = (given.name for given in _inputs(model))
    scale, shift = np.float64(1), np.float64(0)
    while len(after := [each for each in model.graph.node if name in each.input and each.op_type != "Shape"]) == 1:
        (node,) = after
        values = [np.float64(onnx.numpy_helper.to_array(constants[each])) for each in node.input if each in constants]
        if node.op_type in _AFFINE and len(values) == 1 and (node.input[0] == name or node.op_type in {"Add", "Mul"}):
            scale, shift = _AFFINE[node.op_type](scale, shift, values[0])
        elif node.op_type not in _SAME_VALUES:
            break
        name = node.output[0]
    prepared = spec.prepared
    low = min(-mean / std for mean, std in zip(prepared.mean, prepared.std, strict=True))
    high = max((1 - mean) / std for mean, std in zip(prepared.mean, prepared.std, strict=True))
    width, middle = np.abs(scale).max() * (high - low), np.abs(scale * (low + high) / 2 + shift).min()
    own = -shift / np.where(scale == 0, 1, scale)
    if not spec.input and prepared.std != (1.0,) * 3 and scale.min() >= OWN_SCALE and 0 < own.min() <= own.max() < 1:
        raise ModelError(
            f"it normalises images of 0 to 1 itself (mean {own.max():.3g}, std {1 / scale.max():.3g}): use "
            "--mean 0,0,0 --std 1,1,1. Or insist with --input float32-nhwc or float32-nchw"
        )
    if not spec.input and (width < LEAST_WIDTH or middle > MOST_WIDTHS * width):
        raise ModelError(
            f"it scales its images itself (x · {np.abs(scale).max():.3g} + {np.ravel(shift)[0]:.3g}): they become "
            f"numbers around {middle:.3g} that lie within {width:.2g}. Use --pixels if it takes values of 0 to 255, as "
            "after Rescaling or Normalization of Keras. Or insist with --input float32-nhwc or float32-nchw"
        )


def any_batch(model: Any) -> Any:  # noqa: ANN401
    """A copy of a model with a batch of 1 that takes any batch, unless it depends on the 1; callers must test it."""
    onnx, _ = import_onnx()
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for tensor in (*model.graph.input, *model.graph.output):
        dims = _dims(tensor)
        if dims and dims[0].dim_value == 1:
            dims[0].dim_param = BATCH
    constants, opened = constants_of(model), set()
    for node in model.graph.node:
        if node.op_type == "Reshape" and node.input[1] in constants:
            shape = constants[node.input[1]]
            values = onnx.numpy_helper.to_array(shape).copy()
            if values.size > 1 and values[0] == 1:
                values[0] = 0  # keeps the input's size
                shape.CopyFrom(onnx.numpy_helper.from_array(values, shape.name))
                opened.add(node.input[1])
            if node.input[1] in opened:
                # By default 0 keeps the input's size; with allowzero, which torch's exporter sets, it means size 0.
                kept = [attribute for attribute in node.attribute if attribute.name != "allowzero"]
                del node.attribute[:]
                node.attribute.extend(kept)
    del model.graph.value_info[:]
    return model


def finish(
    model: Any,  # noqa: ANN401
    ending: Ending,
    *,
    multi_label: bool,
    side: int,
    classes: int,
    form: Form = Form(),  # noqa: B008  # it is frozen
    output: str = "",
    normalise: tuple[Sequence[float], Sequence[float]] | None = None,
) -> Any:  # noqa: ANN401
    """The model from `input__0` fp32 [N, 3, side, side] to probabilities `output__0` fp32 [N, classes].

    `form` is its own input format, `output` the name of its scores if it has several outputs. With `normalise`,
    a mean and a std, `input__0` are pixels as uint8.
    """
    onnx, _ = import_onnx()
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    if form.gray or form.input.startswith("uint8"):
        model = _with_round(model)
    scores = INNER + _output(model, output).name
    # With a prefix, the model's own tensors cannot clash with the contract's.
    model = onnx.compose.add_prefix(model, INNER, rename_initializers=False, rename_functions=False)
    graph = model.graph
    (given,) = _inputs(model)
    arranged, extra = _arrangement(form, normalise)
    casts = [
        helper.make_node("Cast", [arranged], [given.name], to=given.type.tensor_type.elem_type),
        helper.make_node("Cast", [scores], ["gateway/scores"], to=float32),
    ]
    operator, attributes = _ACTIVATIONS[activation_name(ending, multi_label=multi_label)]
    # Scores may be [N, classes, 1, 1]; the order of two dimensions stays.
    flat = helper.make_node("Flatten", ["gateway/scores"], ["gateway/flat"], axis=1)
    last = helper.make_node(operator, ["gateway/flat"], [CLASSIFIER_OUTPUT], **attributes)
    nodes = [*extra, casts[0], *graph.node, casts[1], flat, last]
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend(nodes)
    kind = onnx.TensorProto.UINT8 if normalise else float32
    graph.input.append(helper.make_tensor_value_info(CLASSIFIER_INPUT, kind, [BATCH, 3, side, side]))
    graph.output.append(helper.make_tensor_value_info(CLASSIFIER_OUTPUT, float32, [BATCH, classes]))
    # Before version 4 weights had to be inputs as well.
    model.ir_version = max(4, model.ir_version)
    # Shapes inferred under the old names are not needed and could contradict the new ones.
    del graph.value_info[:]
    return model


def to_fp16(model: Any) -> Any:  # noqa: ANN401
    """A finished model that computes in fp16 and still takes and gives fp32."""
    import_onnx()
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    # A softmax over many classes stays in fp32: its sum is imprecise in fp16.
    # So does the conversion of the images: fp16 is too imprecise for pixels.
    kept = [node.name for node in model.graph.node if node.name.startswith(ARRANGED)]
    converted = convert_float_to_float16(
        model, keep_io_types=True, op_block_list=["Softmax", "Sigmoid", "Exp"], node_block_list=kept
    )
    # The converter appends its casts at the end, but ONNX requires nodes in the order of their use.
    OnnxModel(converted).topological_sort()
    return converted


def from_module(
    module: "nn.Module", side: int, *, example: "Tensor | None" = None, advice: str = "Use --format torchscript"
) -> Any:  # noqa: ANN401
    """The ONNX form of an eager or TorchScript module; raises ModelError, which ends in `advice`.

    It takes batches like the `example`, by default fp32 [N, 3, side, side].
    """
    onnx, _ = import_onnx()
    import torch

    from gateway_models.networks.torchscript import without_deprecations

    with tempfile.TemporaryDirectory(prefix="onnx-") as folder:
        path = Path(folder) / "model.onnx"
        try:
            with torch.no_grad(), without_deprecations():
                example = torch.rand((2, 3, side, side)) if example is None else example
                if not isinstance(module, torch.jit.ScriptModule):
                    # The exporter copies eager modules, and modules that wrap TorchScript cannot be copied.
                    module = torch.jit.trace(module.eval(), example)  # type: ignore[no-untyped-call]
                torch.onnx.export(
                    torch.jit.freeze(module),
                    (example,),
                    path,
                    input_names=["images"],
                    output_names=["answers"],
                    dynamic_axes={name: {0: BATCH} for name in ("images", "answers")},
                    opset_version=OPSET,
                    # This exporter also takes TorchScript and needs no other package.
                    dynamo=False,
                )
        except Exception as exc:  # the exporter's errors have no common base class
            # The reason, without the exporter's request to report it and its traceback.
            reason = first_line(exc).partition(" Please feel free")[0].rstrip(".")
            raise ModelError(f"torch cannot write it as ONNX: {reason}. {advice}") from exc
        return onnx.load(path)


def write(model: Any, path: Path) -> None:  # noqa: ANN401
    """Check a model and write it to `path` atomically."""
    onnx, _ = import_onnx()
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, mode=0o644) as draft:
        onnx.save(model, draft)


def _output(model: Any, which: str) -> Any:  # noqa: ANN401
    """The output with the scores, by name or number; raises ModelError that lists the outputs."""
    outputs = list(model.graph.output)
    named = {tensor.name: tensor for tensor in outputs}
    if which in named:
        return named[which]
    if which.isdecimal() and int(which) < len(outputs):
        return outputs[int(which)]
    if which or len(outputs) != 1:
        raise ModelError(
            f"it has {len(outputs)} outputs ({', '.join(named)}){f', and no {which!r}' if which else ''}: choose the "
            "scores with --output NAME, or by their number from 0"
        )
    return outputs[0]


def _arrangement(form: Form, normalise: tuple[Sequence[float], Sequence[float]] | None) -> tuple[str, list[Any]]:
    """The nodes that convert `input__0` to a model's input format, and the name of their result.

    They do the same as adapted.Normalising followed by adapted.arranged.
    """
    onnx, _ = import_onnx()
    nodes: list[Any] = []
    name = CLASSIFIER_INPUT

    def add(operator: str, *constants: Any, **attributes: Any) -> None:  # noqa: ANN401  # numbers and lists of them
        nonlocal name
        inputs = [name]
        for constant in constants:
            inputs.append(f"gateway/constant{len(nodes)}")
            value = onnx.numpy_helper.from_array(np.asarray(constant, np.float32))
            nodes.append(onnx.helper.make_node("Constant", [], [inputs[-1]], value=value))
        name = f"{ARRANGED}{len(nodes)}"
        nodes.append(onnx.helper.make_node(operator, inputs, [name], name=name, **attributes))

    if normalise:
        mean, std = (np.asarray(values, np.float32).reshape(1, 3, 1, 1) for values in normalise)
        add("Cast", to=onnx.TensorProto.FLOAT)
        add("Mul", 1 / (PIXELS * std))
        add("Add", -mean / std)
    if form.gray:
        for operator, number in (("Mul", form.gray.std), ("Add", form.gray.mean), ("Mul", PIXELS)):
            add(operator, number)
        add("Round")
        # A 1×1 convolution, which every version of ONNX has, sums the channels.
        add("Conv", np.array(LUMA).reshape(1, 3, 1, 1))
        for operator, number in (("Add", 32768), ("Div", 65536)):
            add(operator, number)
        add("Floor")
        for operator, number in (("Div", PIXELS), ("Sub", form.gray.mean), ("Div", form.gray.std)):
            add(operator, number)
    if form.input.startswith("uint8"):
        add("Round")
        add("Clip", 0, PIXELS)
    if form.input.endswith("nhwc"):
        add("Transpose", perm=[0, 2, 3, 1])
    return name, nodes


def _dims(tensor: Any) -> list[Any]:  # noqa: ANN401
    return list(tensor.type.tensor_type.shape.dim)
