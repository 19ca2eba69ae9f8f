"""Turning a PyTorch module into a TorchScript file that Triton's libtorch backend serves."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning

from gateway.errors import UserError
from gateway.files import whole_file
from gateway_models.networks.archives import clean_torchscript, path_of

TOLERANCE = 1e-4
"""How far the exported module's probabilities may be from the eager one's: the same float32 sums in another order."""


class ExportError(UserError):
    """A module cannot be exported, or does not give the same answers afterwards; the message is for the terminal."""


class Served(nn.Module):
    """A network with what is missing to serve it: fp32 images in, fp32 probabilities out, whatever is inside."""

    def __init__(self, network: nn.Module, activation: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
        super().__init__()
        self.network, self.activation, self.dtype = network, activation, dtype

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Probabilities fp32 [N, classes] of images fp32 [N, 3, H, W], with vectors where the network gives some."""
        answer = self.network(images.to(self.dtype))
        # Probabilities in fp32: in bf16 a softmax over 1,000 classes does not sum to one.
        if isinstance(answer, tuple):
            return self.activation(answer[0].float()), answer[1].float()
        return self.activation(answer.float())


def largest_difference(answer: Tensor | Sequence[Tensor], expected: Tensor | Sequence[Tensor]) -> float:
    """The largest difference of a number in two answers; of vectors, which have any scale, by that of theirs."""
    if isinstance(answer, Tensor) and isinstance(expected, Tensor):
        return float((expected - answer).abs().max())
    (scores, vectors), (wanted, wanted_vectors) = answer, expected
    scale = max(1.0, float(wanted_vectors.abs().max()))
    return max(largest_difference(scores, wanted), largest_difference(vectors, wanted_vectors) / scale)


def load_torchscript(path: Path) -> torch.jit.ScriptModule:
    """Load a TorchScript file onto the CPU, ready to be asked; raises ExportError where it is damaged.

    Raises ModelFileError where its code reaches files. Loading runs code of the file as well: `__setstate__`.
    """
    try:
        with without_deprecations(), clean_torchscript(path) as file:
            module: torch.jit.ScriptModule = torch.jit.load(path_of(file), map_location="cpu")  # type: ignore[no-untyped-call]
    except (RuntimeError, OSError, ValueError) as exc:
        raise ExportError(f"{path} cannot be loaded as TorchScript: {str(exc).strip().splitlines()[0]}") from exc
    return module.eval()


def convert(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Have a module compute in another floating-point type, in place; a frozen one too, whose weights are constants."""
    module = module.to(dtype)
    graph = getattr(module, "graph", None)
    if graph is not None:
        _convert_constants(graph, dtype)
    return module


def _convert_constants(block: Any, dtype: torch.dtype) -> None:  # noqa: ANN401  # torch._C has no public names
    for node in block.nodes():
        if node.kind() == "prim::Constant" and node.hasAttribute("value") and node.kindOf("value") == "t":
            value = node.t("value")
            if value.is_floating_point():
                # Four dimensions are a convolution's weights, which run faster in the order of their images.
                order = torch.channels_last if value.dim() == 4 else torch.contiguous_format
                value = value.to(dtype).contiguous(memory_format=order)
                node.t_("value", value)
                node.output().inferTypeFrom(value)
        for inner in node.blocks():
            _convert_constants(inner, dtype)


FACTORIES = frozenset(
    f"aten::{name}" for name in ("arange", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "zeros")
)


def cpu_only(module: torch.jit.ScriptModule) -> tuple[str, ...]:
    """The operations of a TorchScript module that make or move tensors on the CPU whatever device it runs on.

    A trace keeps the device of its example: `torch.zeros(n, device=x.device)` becomes zeros on the CPU for ever. On a
    GPU the next operation then finds its tensors on two devices.
    """
    return tuple(sorted(set(_on_cpu(module.inlined_graph))))


def _on_cpu(block: Any) -> Iterator[str]:  # noqa: ANN401  # torch._C has no public names
    for node in block.nodes():
        for index, value in enumerate(node.inputs()):
            constant = value.node().kind() == "prim::Constant"
            if constant and _is_device(node, index, value) and value.toIValue() in {None, torch.device("cpu")}:
                yield node.kind()
        for inner in node.blocks():
            yield from _on_cpu(inner)


def _is_device(node: Any, index: int, value: Any) -> bool:  # noqa: ANN401
    """Whether an input is a device that is said to be the CPU, or left out where that means the CPU."""
    if value.type().kind() == "DeviceObjType":
        return True
    # A factory's last inputs are dtype, layout, device, pin_memory (native_functions.yaml).
    return node.kind() in FACTORIES and index == len(list(node.inputs())) - 2 and value.toIValue() is None


def export_torchscript(
    module: nn.Module,
    example: Tensor,
    path: Path,
    *,
    extra_files: Mapping[str, str] | None = None,
    tolerance: float = TOLERANCE,
) -> None:
    """Write a module as frozen TorchScript in channels-last order to `path`.

    `example` is one batch fp32 [N, 3, H, W]; other batch sizes must work as well and are tried. The file takes its name
    only after it was loaded again and gave the eager module's answers within `tolerance`. `extra_files` go into the
    archive. Raises ExportError.
    """
    module = module.eval().to(memory_format=torch.channels_last)
    example = example.to(memory_format=torch.channels_last)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whatever the umask: a model is for whoever runs the server.
    with whole_file(path, mode=0o644) as draft, torch.no_grad(), without_deprecations():
        # _check compares answers for several batches, so that the tracer need not for this one.
        traced = torch.jit.trace(module, example, check_trace=False)  # type: ignore[no-untyped-call]
        frozen = torch.jit.freeze(traced)
        torch.jit.save(frozen, draft, _extra_files=dict(extra_files or {}))
        exported = torch.jit.load(draft, map_location="cpu")  # type: ignore[no-untyped-call]
        _check(module, exported, example, tolerance)


def _check(eager: nn.Module, exported: nn.Module, example: Tensor, tolerance: float) -> None:
    for batch in (example, example[:1], torch.cat((example, example))):
        expected = eager(batch)
        # More than once: TorchScript compiles again after its first calls.
        for _ in range(3):
            difference = largest_difference(exported(batch), expected)
            if not difference <= tolerance:
                raise ExportError(
                    f"the exported model's answers differ from the eager model's by {difference:.2g} "
                    f"in a batch of {len(batch)}, more than {tolerance:g}"
                )


@contextmanager
def without_deprecations() -> Iterator[None]:
    """Without torch's warnings about TorchScript, the exporter of ONNX that takes it, and tracing."""
    with warnings.catch_warnings():
        # TorchScript is what Triton's libtorch backend loads, whatever torch says of its future.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        # What a trace has bound to its example is found by comparing answers.
        warnings.simplefilter("ignore", TracerWarning)
        warnings.filterwarnings("ignore", "Constant folding|no signature found", UserWarning)
        yield
