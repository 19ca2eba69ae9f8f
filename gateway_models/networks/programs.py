"""Programs of torch.export, in .pt2 files: loaded, and written where a trace of them would answer otherwise."""

import shutil
import warnings
from pathlib import Path

import torch
from torch import Tensor, fx, nn

from gateway.files import whole_file
from gateway_models.networks.archives import clean_program
from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.torchscript import TOLERANCE, ExportError, largest_difference, without_deprecations

ANY_BATCH = (
    "export it again for any batch: torch.export.export(model.eval(), (torch.rand(2, 3, 224, 224),), "
    "dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))"
)


class Program(nn.Module):
    """A loaded program as a module that can be asked and traced; it was exported as it is, in eval() or not."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        # As the module of an exported program refuses to be switched, and has nothing to switch.
        program.train = lambda mode=True: program  # type: ignore[method-assign]  # noqa: ARG005
        self.program = program
        # Around the registration of modules: its weights are the program's own.
        self.__dict__["_traced"] = traceable(program) if isinstance(program, fx.GraphModule) else program

    def forward(self, images: Tensor) -> object:
        """What the program gives; raises ModelFileError where the batch's size is built in."""
        traced = torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
        run: nn.Module = self.__dict__["_traced"] if traced else self.program
        try:
            return run(images)
        except (AssertionError, RuntimeError) as exc:
            # Of a guard, in programs that are trusted, or of the signature.
            if "size()[0]" in str(exc) or "*args[0].shape[0] to be" in str(exc):
                raise ModelFileError(f"it takes a fixed batch, or a bounded one ({exc}): {ANY_BATCH}") from exc
            raise


def traceable(program: fx.GraphModule) -> fx.GraphModule:
    """The same program with the same weights, whose trace asks for the batch's size instead of keeping the example's.

    torch.jit.trace records sizes that it gets of a tensor's method, not those of a program's own operator.
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
        # As with the sizes: operators of the program take numbers alone, methods also what stands for one in a trace.
        name = node.target._schema.name.rpartition("::")[2]
        node.target = getattr(Tensor, name, None) or getattr(torch, name, node.target)
    return fx.GraphModule(program, graph)


def _size(tensor: Tensor, dimension: int) -> int:
    return tensor.size(dimension)


def load_program(path: Path, *, trust: bool = False) -> nn.Module:
    """Load a .pt2 file onto the CPU; raises ExportError where it is damaged or of another torch.

    Raises ModelFileError where it could execute code, which only `trust` allows.
    """
    try:
        with without_deprecations():
            if trust:
                return Program(torch.export.load(path).module())
            with clean_program(path) as file:
                return Program(torch.export.load(file).module())
    except ModelFileError:
        raise
    except Exception as exc:  # of zip, of JSON, of torch
        lines = str(exc).strip().splitlines()
        raise ExportError(
            f"{path} cannot be loaded by torch {torch.__version__}: {lines[0] if lines else type(exc).__name__}"
        ) from exc


def export_program(module: nn.Module, example: Tensor, path: Path, *, tolerance: float = TOLERANCE) -> None:
    """Write a module as a program for any batch, proven after it was loaded again; raises ExportError.

    `example` is one batch fp32 [N, 3, H, W].
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, mode=0o644) as draft:
        try:
            with torch.no_grad(), without_deprecations(), warnings.catch_warnings():
                # Of weights that share their memory, as those of a loaded program do; the answers are compared below.
                warnings.filterwarnings("ignore", "No complete tensor found", UserWarning)
                shapes = {0: torch.export.Dim.DYNAMIC}
                program = torch.export.export(module.eval(), (example,), dynamic_shapes=(shapes,))
                # torch wants the ending, which a draft does not have.
                with draft.open("wb") as file:
                    torch.export.save(program, file)
            # Without the example, and with nothing that Triton's backend would refuse.
            with clean_program(draft) as cleaned, draft.open("wb") as file:
                shutil.copyfileobj(cleaned, file)
        except ModelFileError:
            raise
        except Exception as exc:  # the exporter raises all kinds
            reason = str(exc).strip().splitlines()[0]
            raise ExportError(f"torch.export cannot write it for any batch: {reason}") from exc
        with draft.open("rb") as file:
            written = torch.export.load(file).module()
        for batch in (example, example[:1], torch.cat((example, example))):
            with torch.no_grad():
                difference = largest_difference(written(batch), module(batch))
            if not difference <= tolerance:
                raise ExportError(f"the program's answers differ from the original's by {difference:.2g}")
