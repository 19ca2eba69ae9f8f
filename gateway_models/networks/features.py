"""Embeddings of a PyTorch network: the input of its last linear layer, or the output of a named layer.

The network runs unchanged and returns the embedding beside its scores.
"""

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from gateway_models.networks.adapted import Adapted, Form, chosen, flat
from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.probe import ALONE_TOLERANCE, probe_batches
from gateway_models.networks.programs import Program
from gateway_models.networks.torchscript import without_deprecations
from gateway_models.repository.spec import AUTO

NAME_IT = "use --embeddings LAYER, a layer whose output is [N, size], or [N, channels, height, width] to be averaged"
NO_LENGTH = 1e-5
"""An embedding shorter than this part of the longest one is rounding noise, such as the embedding of an even image."""
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
"""Operations between the last layer and the scores; their data is the first input."""
_LINEAR = {"linear": 0, "matmul": 0, "mm": 0, "addmm": 1}
"""Linear layers, and the index of the input that comes from the layer before."""


class Featured(Adapted):
    """Wraps a network as images fp32 [N, 3, H, W] → scores [N, classes] and embeddings [N, size]."""

    def __init__(self, network: nn.Module, form: Form, output: str, layer: str, classes: int) -> None:
        super().__init__(cut(network, layer, classes), form, output)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # one tensor more
        """Scores and embeddings."""
        output, inner = self.network(self.taken(images))
        return flat(chosen(output, self.output)), pooled(inner)


def cut(network: nn.Module, layer: str, classes: int) -> nn.Module:
    """Wrap a network to return a pair: its output and the layer's output; raises ModelFileError.

    `classes` is its number of classes, which identifies the last layer.
    """
    if isinstance(network, torch.jit.ScriptModule):
        return _CutScript(network, layer)
    if isinstance(network, Program):
        return _CutProgram(network, layer)
    return _CutModule(network, layer, classes)


def pooled(inner: object) -> Tensor:
    """Embeddings [N, size] from a layer's output, averaged over height and width if it has these."""
    if isinstance(inner, Tensor) and inner.is_floating_point():
        if inner.dim() == 2:
            return inner
        if inner.dim() == 4:
            return inner.mean((2, 3))
    what = str(list(inner.shape)) if isinstance(inner, Tensor) else f"a {type(inner).__name__}"
    raise ModelFileError(
        f"the output of the layer for --embeddings is {what}, not one vector for each image: {NAME_IT}"
    )


def check_embeddings(run: Callable[[Tensor], tuple[Tensor, Tensor]], side: int, *, pixels: bool) -> int:
    """The size of each embedding; raises ModelFileError where it depends on other images or not on its own image."""
    batches = probe_batches(side, pixels=pixels)
    batch = torch.cat(batches[:3])
    together = run(batch)[1].float()
    if together.dim() != 2 or len(together) != len(batch):
        raise ModelFileError(
            f"its embeddings have the shape {list(together.shape)} for a batch of {len(batch)}: {NAME_IT}"
        )
    if not torch.isfinite(together).all():
        raise ModelFileError("its embeddings have NaN or infinity for ordinary images: were its weights loaded?")
    alone = torch.cat([run(image[None])[1].float() for image in batch])
    if not torch.allclose(together, alone, atol=ALONE_TOLERANCE * max(1.0, float(together.abs().max()))):
        raise ModelFileError(f"the embedding of an image depends on the others in its batch: {NAME_IT}")
    # The embeddings of noise may all be zero vectors.
    others = run(torch.cat(batches[3:]))[1].float()
    if not (together - others[0]).any() and not (others - others[0]).any():
        raise ModelFileError(f"its embeddings are the same for every image: {NAME_IT}")
    return int(together.shape[1])


def embedding_difference(served: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest difference of embeddings: 1 minus the smallest cosine of an image's two embeddings.

    A zero vector has no direction: it is as another one whose length is at most `NO_LENGTH` of the longest.
    """
    one, other = torch.cat(list(served)).double(), torch.cat(list(expected)).double()
    lengths = torch.stack((one.norm(dim=1), other.norm(dim=1)))
    cosines = torch.nn.functional.cosine_similarity(one, other, dim=1, eps=1e-30)
    cosines = torch.where((lengths <= NO_LENGTH * lengths.max()).all(dim=0), 1.0, cosines)
    return max(0.0, 1.0 - float(cosines.min()))


class _CutModule(nn.Module):
    """An eager network with forward hooks on its layers."""

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
        """The network's output, and the layer's."""
        self._seen.clear()
        output = self.network(images)
        seen = list(self._seen)
        self._seen.clear()
        if not seen:
            if self._auto:
                raise ModelFileError(f"none of its linear layers runs as a module: {NAME_IT}")
            raise ModelFileError("the layer that --embeddings names is not executed")
        if not self._auto:
            return output, seen[-1][1]
        heads = [given for given, out in seen if out.dim() == 2 and out.shape[1] == self._classes]
        if len(heads) != 1:
            what = f"{len(heads)} candidates for the last layer" if heads else "no linear layer at its end"
            raise ModelFileError(f"it has {what}: {NAME_IT}")
        return output, heads[0]

    def _keep(self, _: nn.Module, given: tuple[object, ...], out: Tensor) -> None:
        self._seen.append((given[0] if given else None, out))


class _CutScript(nn.Module):
    """A TorchScript network whose graph has the embedding as a second output."""

    def __init__(self, script: torch.jit.ScriptModule, layer: str) -> None:
        super().__init__()
        if layer != AUTO:
            raise ModelFileError(
                "a TorchScript file does not store the names of its layers: use --embeddings auto for the input of its "
                "last one, or add the network by its architecture and weights, or as ONNX or torch.export"
            )
        # A frozen file has no parameters left and must not be frozen again.
        with without_deprecations():
            frozen = torch.jit.freeze(script) if hasattr(script, "training") else script
        self.graph = frozen.graph.copy()
        """torchscript.convert changes it too."""
        outputs = list(self.graph.outputs())
        found = _last_linear(outputs[0], _ScriptNodes) if len(outputs) == 1 else None
        first = next(self.graph.inputs())
        if found is None or any(True for _ in first.uses()):
            raise ModelFileError(
                "its last layer cannot be found in the TorchScript file: add the network by its architecture and "
                "weights, or as ONNX, and use --embeddings LAYER"
            )
        self.graph.registerOutput(found)
        self.graph.makeMultiOutputIntoTuple()
        self.graph.eraseInput(0)
        self._function: Callable[[Tensor], tuple[object, Tensor]] | None = None

    def forward(self, images: Tensor) -> tuple[object, Tensor]:
        """The network's output, and the embeddings."""
        if self._function is None:
            self._function = torch._C._create_function_from_graph("cut", self.graph.copy())
        return self._function(images)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:  # noqa: ANN401, FBT001, FBT002  # as nn.Module has it
        self._function = None  # `convert` is about to change the graph
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]


class _CutProgram(nn.Module):
    """A torch.export program, run node by node."""

    def __init__(self, program: Program, layer: str) -> None:
        super().__init__()
        self.network = program
        module = program.program
        assert isinstance(module, fx.GraphModule)
        self._steps = _Keeping(module, _program_node(module.graph, layer))

    def forward(self, images: Tensor) -> tuple[object, object]:
        """The network's output, and the layer's."""
        output = self._steps.run(images)
        return output, self._steps.kept


class _Keeping(fx.Interpreter):
    """Runs a program and keeps the output of one node."""

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
        result = results[0] if isinstance(results, (list, tuple)) and len(results) == 1 else results
        found = _last_linear(result, _ProgramNodes) if isinstance(result, fx.Node) else None
        if isinstance(found, fx.Node):
            return found
        raise ModelFileError(f"it has no linear layer at its end: {NAME_IT}")
    ends: dict[str, fx.Node] = {}
    for node in graph.nodes:
        for path, _ in node.meta.get("nn_module_stack", {}).values():
            ends[path] = node
    return ends[_named(layer, ends)]


class _ScriptNodes:
    """Access to the nodes of a TorchScript graph."""

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
    """Access to the nodes of a torch.export graph."""

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
    """The input of the last linear layer before a result; None if the result comes from another kind of layer."""
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
    """The full name of a layer, which may be given by a unique last part; raises ModelFileError."""
    names = [name for name in known if name]
    if layer in names:
        return layer
    ends = [name for name in names if name.endswith(f".{layer}")]
    if len(ends) == 1:
        return ends[0]
    near = ends or difflib.get_close_matches(layer, names, n=3) or names[-3:]
    raise ModelFileError(f"it has no layer {layer!r} for --embeddings; its layers include: {', '.join(near)}")
