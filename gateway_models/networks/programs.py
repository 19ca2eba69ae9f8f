"""Loads torch.export programs (.pt2 files), which are written as TorchScript or ONNX."""

from pathlib import Path

import torch
from torch import Tensor, fx, nn

from gateway_models.networks.errors import ModelError, first_line
from gateway_models.networks.torchscript import without_deprecations

ANY_BATCH = (
    "export it again for any batch: torch.export.export(model.eval(), (torch.rand(2, 3, 224, 224),), "
    "dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))"
)


class Program(nn.Module):
    """A loaded program as a module that can be called and traced; it stays in the train or eval mode of its export."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        if isinstance(program, fx.GraphModule):
            _detach_out_of_place(program)
        # The module of an exported program raises on train() and eval(), which have no effect on it.
        program.train = lambda mode=True: program  # type: ignore[method-assign]  # noqa: ARG005
        self.program = program
        # Bypasses the registration of submodules: its weights are the program's own.
        self.__dict__["_traced"] = traceable(program) if isinstance(program, fx.GraphModule) else program

    def forward(self, images: Tensor) -> object:
        """The program's output; raises ModelError if the batch size is fixed."""
        traced = torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
        run: nn.Module = self.__dict__["_traced"] if traced else self.program
        try:
            return run(images)
        except (AssertionError, RuntimeError) as exc:
            if "size()[0]" in str(exc) or "shape[0]" in str(exc):
                raise ModelError(f"it takes a fixed batch, or a bounded one ({exc}): {ANY_BATCH}") from exc
            raise


def traceable(program: fx.GraphModule) -> fx.GraphModule:
    """A program with the same weights whose trace computes the batch size instead of keeping the example's.

    torch.jit.trace records sizes from Tensor.size(), but not those from the program's own operator.
    """
    graph = fx.Graph()
    graph.output(graph.graph_copy(program.graph, {}))
    graph.set_codegen(program.graph._codegen)
    sizes: set[fx.Node] = set()
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.sym_size.int):
        node.target = _size
        sizes.add(node)
    for node in graph.nodes:
        if node.op != "call_function" or sizes.isdisjoint(node.all_input_nodes):
            continue
        if not isinstance(node.target, torch._ops.OpOverload):
            sizes.add(node)  # arithmetic with sizes
            continue
        # The program's operators take only numbers; Tensor's methods also take a traced size.
        name = node.target._schema.name.rpartition("::")[2]
        node.target = getattr(Tensor, name, None) or getattr(torch, name, node.target)
    return fx.GraphModule(program, graph)


def _detach_out_of_place(program: fx.GraphModule) -> None:
    """Replace detach_, which torch.tensor([…]) in a network becomes, and which torch.export does not take again."""
    nodes = program.graph.find_nodes(op="call_function", target=torch.ops.aten.detach_.default)
    for node in nodes:
        node.target = torch.ops.aten.detach.default
    if nodes:
        program.recompile()


def _size(tensor: Tensor, dimension: int) -> int:
    return tensor.size(dimension)


def load_program(path: Path) -> nn.Module:
    """Load a .pt2 file onto the CPU, which may execute code in it; raises ModelError if torch cannot read it."""
    try:
        # A file, not its path: torch leaves open a file that it cannot read.
        with without_deprecations(), path.open("rb") as file:
            return Program(torch.export.load(file).module())
    except Exception as exc:  # zip, JSON and torch have no common base class
        raise ModelError(f"{path} cannot be loaded by torch {torch.__version__}: {first_line(exc)}") from exc
