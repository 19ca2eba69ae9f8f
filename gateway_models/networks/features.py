"""The vectors inside of a network of PyTorch: what its last linear layer sees, or what a layer of it gives.

A network is cut without being taken apart: it runs as it is, and gives the vectors beside its answer.
"""

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from gateway_models.networks.adapted import Adapted, Form, chosen
from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.programs import Program
from gateway_models.networks.torchscript import without_deprecations
from gateway_models.networks.trial import ALONE_TOLERANCE, probes
from gateway_models.repository.entry import AUTO

NAME_IT = "use --features LAYER, a layer that gives [N, size], or [N, channels, height, width] to be averaged"
_PASSING = frozenset(
    {
        "_to_copy",
        "alias",
        "clone",
        "contiguous",
        "detach",
        "dropout",
        "dropout_",
        "exp",
        "flatten",
        "reshape",
        "squeeze",
    }
    | {"log_softmax", "sigmoid", "sigmoid_", "softmax", "_softmax", "_log_softmax", "to", "type_as", "view"}
)
"""Operations between the last layer and the scores, whose input is their first."""
_LINEAR = {"linear": 0, "matmul": 0, "mm": 0, "addmm": 1}
"""Linear layers, and which of their inputs comes from the layer before."""


class Featured(Adapted):
    """A network as a function of images fp32 [N, 3, H, W] that gives scores [N, classes] and vectors [N, size]."""

    def __init__(self, network: nn.Module, form: Form, output: str, layer: str, classes: int) -> None:
        super().__init__(cut(network, layer, classes), form, output)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # one tensor more
        """Scores and vectors."""
        output, inner = self.network(self.taken(images))
        return chosen(output, self.output), pooled(inner)


def cut(network: nn.Module, layer: str, classes: int) -> nn.Module:
    """A network that gives a pair: what it gives anyway, and what stands inside of it; raises ModelFileError.

    `classes` is how many it has, by which its last layer is known.
    """
    if isinstance(network, torch.jit.ScriptModule):
        return _CutScript(network, layer)
    if isinstance(network, Program):
        return _CutProgram(network, layer)
    return _CutModule(network, layer, classes)


def pooled(inner: object) -> Tensor:
    """Vectors [N, size] of what a layer gives, averaged over height and width where it has them."""
    if isinstance(inner, Tensor) and inner.is_floating_point():
        if inner.dim() == 2:
            return inner
        if inner.dim() == 4:
            return inner.mean((2, 3))
    what = str(list(inner.shape)) if isinstance(inner, Tensor) else f"a {type(inner).__name__}"
    raise ModelFileError(f"the layer for --features gives {what}, which is not one vector for each image: {NAME_IT}")


def check_vectors(run: Callable[[Tensor], tuple[Tensor, Tensor]], side: int, *, pixels: bool) -> int:
    """How many numbers each vector has; raises ModelFileError where they are not those of their own image alone."""
    batches = probes(side, pixels=pixels)
    batch = torch.cat(batches[:3])
    together = run(batch)[1].float()
    if together.dim() != 2 or len(together) != len(batch):
        raise ModelFileError(f"its vectors are {list(together.shape)} for a batch of {len(batch)}: {NAME_IT}")
    if not torch.isfinite(together).all():
        raise ModelFileError("its vectors have NaN or infinity for ordinary images: were its weights loaded?")
    alone = torch.cat([run(image[None])[1].float() for image in batch])
    if not torch.allclose(together, alone, atol=ALONE_TOLERANCE * max(1.0, float(together.abs().max()))):
        raise ModelFileError(f"the vector of an image depends on the others in its batch: {NAME_IT}")
    if float((together - together[0]).abs().max()) == 0:
        raise ModelFileError(f"its vectors are the same for every image: {NAME_IT}")
    return int(together.shape[1])


def vector_difference(served: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """How far the vectors of some batches are from others: 1 minus the least cosine of two of one image."""
    cosines = [
        float(torch.nn.functional.cosine_similarity(one.double(), other.double(), dim=1, eps=1e-30).min())
        for one, other in zip(served, expected, strict=True)
    ]
    return max(0.0, 1.0 - min(cosines))


class _CutModule(nn.Module):
    """An eager network, whose layers are watched while it runs."""

    def __init__(self, network: nn.Module, layer: str, classes: int) -> None:
        super().__init__()
        self.network = network
        self._auto, self._classes = layer == AUTO, classes
        self._seen: list[tuple[object, Tensor]] = []
        if self._auto:
            for module in network.modules():
                if isinstance(module, nn.Linear):
                    module.register_forward_hook(self._keep)
        else:
            modules = dict(network.named_modules())
            modules[_named(layer, modules)].register_forward_hook(self._keep)

    def forward(self, images: Tensor) -> tuple[object, object]:
        """The answer, and the vectors or what they are averaged of."""
        self._seen.clear()
        output = self.network(images)
        seen = list(self._seen)
        self._seen.clear()
        if not seen:
            if self._auto:
                raise ModelFileError(f"it has no linear layer that runs as one: {NAME_IT}")
            raise ModelFileError("the layer that --features names does not run")
        if not self._auto:
            return output, seen[-1][1]
        heads = [given for given, out in seen if out.dim() == 2 and out.shape[1] == self._classes]
        if len(heads) != 1:
            what = f"{len(heads)} layers that could be the last one" if heads else "no linear layer at its end"
            raise ModelFileError(f"it has {what}: {NAME_IT}")
        return output, heads[0]

    def _keep(self, _: nn.Module, given: tuple[object, ...], out: Tensor) -> None:
        self._seen.append((given[0] if given else None, out))


class _CutScript(nn.Module):
    """A TorchScript network, whose graph has one output more."""

    def __init__(self, script: torch.jit.ScriptModule, layer: str) -> None:
        super().__init__()
        if layer != AUTO:
            raise ModelFileError(
                "a TorchScript file does not keep the names of its layers: use --features auto for the input of its "
                "last one, or add the network by its architecture and weights, or as ONNX or torch.export"
            )
        # A file that is frozen already has no parameters left, and is not to be frozen again.
        with without_deprecations():
            frozen = torch.jit.freeze(script) if hasattr(script, "training") else script
        self.graph = frozen.graph.copy()
        """Also what torchscript.convert changes."""
        outputs = list(self.graph.outputs())
        found = _last_linear(outputs[0], _ScriptNodes) if len(outputs) == 1 else None
        first = next(self.graph.inputs())
        if found is None or any(True for _ in first.uses()):
            raise ModelFileError(
                "its last layer cannot be found in the TorchScript file: add the network by its architecture and "
                "weights, or as ONNX, and use --features LAYER"
            )
        self.graph.registerOutput(found)
        self.graph.makeMultiOutputIntoTuple()
        self.graph.eraseInput(0)
        self._function: Callable[[Tensor], tuple[object, Tensor]] | None = None

    def forward(self, images: Tensor) -> tuple[object, Tensor]:
        """The answer, and the vectors."""
        if self._function is None:
            self._function = torch._C._create_function_from_graph("cut", self.graph.copy())
        return self._function(images)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:  # noqa: ANN401, FBT001, FBT002  # as nn.Module has it
        self._function = None  # `convert` is about to change the graph
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]


class _CutProgram(nn.Module):
    """A program of torch.export, run step by step."""

    def __init__(self, program: Program, layer: str) -> None:
        super().__init__()
        self.network = program
        module = program.program
        assert isinstance(module, fx.GraphModule)
        self._steps = _Keeping(module, _program_node(module.graph, layer))

    def forward(self, images: Tensor) -> tuple[object, object]:
        """The answer, and the vectors or what they are averaged of."""
        output = self._steps.run(images)
        return output, self._steps.kept


class _Keeping(fx.Interpreter):
    """Runs a program and keeps what one of its steps gives."""

    def __init__(self, module: fx.GraphModule, node: fx.Node) -> None:
        super().__init__(module)
        self.node = node
        self.kept: object = None

    def run_node(self, n: fx.Node) -> Any:  # noqa: ANN401  # fx has it so
        result = super().run_node(n)
        if n is self.node:
            self.kept = result
        return result


def _program_node(graph: fx.Graph, layer: str) -> fx.Node:
    if layer == AUTO:
        (output,) = [node for node in graph.nodes if node.op == "output"]
        results = output.args[0]
        one = results[0] if isinstance(results, (list, tuple)) and len(results) == 1 else results
        found = _last_linear(one, _ProgramNodes) if isinstance(one, fx.Node) else None
        if isinstance(found, fx.Node):
            return found
        raise ModelFileError(f"it has no linear layer at its end: {NAME_IT}")
    ends: dict[str, fx.Node] = {}
    for node in graph.nodes:
        for path, _ in node.meta.get("nn_module_stack", {}).values():
            ends[path] = node
    return ends[_named(layer, ends)]


class _ScriptNodes:
    """How to walk a graph of TorchScript."""

    @staticmethod
    def operation(value: Any) -> str:  # noqa: ANN401  # torch._C has no public names
        return str(value.node().kind()).removeprefix("aten::")

    @staticmethod
    def inputs(value: Any) -> list[Any]:  # noqa: ANN401
        return list(value.node().inputs())

    @staticmethod
    def is_constant(value: Any) -> bool:  # noqa: ANN401
        return bool(value.node().kind() == "prim::Constant")


class _ProgramNodes:
    """How to walk a graph of torch.export."""

    @staticmethod
    def operation(node: fx.Node) -> str:
        return str(getattr(node.target, "_opname", node.op))

    @staticmethod
    def inputs(node: fx.Node) -> list[Any]:
        return [each for each in node.args if isinstance(each, fx.Node)]

    @staticmethod
    def is_constant(node: fx.Node) -> bool:
        return node.op == "get_attr"


def _last_linear(value: Any, nodes: type[_ScriptNodes | _ProgramNodes]) -> Any:  # noqa: ANN401
    """What the last linear layer before a result is given; None where there is something else before that."""
    while True:
        operation, inputs = nodes.operation(value), nodes.inputs(value)
        if operation in _LINEAR:
            return inputs[_LINEAR[operation]]
        if operation in {"add", "add_"}:
            inputs = [each for each in inputs[:2] if not nodes.is_constant(each)]
            if len(inputs) != 1:
                return None
        elif operation not in _PASSING:
            return None
        value = inputs[0]


def _named(layer: str, known: Iterable[str]) -> str:
    """The full name of a layer, of which the end is enough where it is the only one; raises ModelFileError."""
    names = [name for name in known if name]
    if layer in names:
        return layer
    ends = [name for name in names if name.endswith(f".{layer}")]
    if len(ends) == 1:
        return ends[0]
    near = ends or difflib.get_close_matches(layer, names, n=3) or names[-3:]
    raise ModelFileError(f"it has no layer {layer!r} for --features; there are, among others: {', '.join(near)}")
