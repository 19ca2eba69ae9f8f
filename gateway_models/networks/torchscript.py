"""Writes PyTorch modules as TorchScript files that Triton's libtorch backend serves."""

import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning

from gateway.values.files import whole_file
from gateway_models.networks.errors import ModelError, first_line

TOLERANCE = 1e-4
"""The largest allowed difference between exported and eager probabilities: float32 sums in another order."""

NAMESPACES = frozenset({"aten", "prim", "prims", "quantized", "torchvision"})
"""Namespaces of operators that only compute; operators of others may do anything."""
FILES = frozenset({"aten::from_file", "aten::save"})
TRACE_OR_TRUST = (
    "None of its code was executed. Save it by torch.jit.trace(model.eval(), example).save(…), without such code; or, "
    "if its author may access your files, add --trust"
)


class Served(nn.Module):
    """Wraps a network of images fp32 for serving: its answers become probabilities in fp32."""

    def __init__(self, network: nn.Module, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.network, self.activation = network, activation

    def forward(self, images: Tensor) -> Tensor:
        """Probabilities fp32 [N, classes] of images fp32 [N, 3, H, W]."""
        # Probabilities in fp32: in bf16 a softmax over 1,000 classes does not sum to one.
        return self.activation(self.network(images).float())


def load_torchscript(path: Path, *, trust: bool = False) -> torch.jit.ScriptModule:
    """Load a TorchScript file onto the CPU in eval mode; raises ModelError if it is damaged.

    TorchScript cannot import Python modules, and torch unpickles its data without Python. Unless `trust`, raises
    ModelError if the file has code that runs while it is loaded, or operators that access files.
    """
    try:
        if not trust and _runs_while_loading(path):
            raise ModelError(f"{path} runs code while it is loaded (__setstate__): {TRACE_OR_TRUST}")
        with without_deprecations():
            module: torch.jit.ScriptModule = torch.jit.load(path, map_location="cpu").eval()  # type: ignore[no-untyped-call]
            operators: list[str] = torch.jit.export_opnames(module)  # type: ignore[no-untyped-call]
    except (RuntimeError, OSError, ValueError, zipfile.BadZipFile) as exc:
        raise ModelError(f"{path} cannot be loaded as TorchScript: {first_line(exc)}") from exc
    names = [name.partition(".")[0] for name in operators]
    if not trust and (others := [name for name in names if name in FILES or name.partition("::")[0] not in NAMESPACES]):
        raise ModelError(f"{path} has the operator {others[0]}, which may access files: {TRACE_OR_TRUST}")
    return module


def _runs_while_loading(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        return any(b"__setstate__" in archive.read(name) for name in archive.namelist() if name.endswith(".py"))


def export_torchscript(
    module: nn.Module,
    example: Tensor,
    path: Path,
    *,
    extra_files: Mapping[str, str] | None = None,
    tolerance: float = TOLERANCE,
) -> None:
    """Write a module as frozen TorchScript in channels-last order to `path`.

    `example` is one batch fp32 [N, 3, H, W]; other batch sizes must work too and are tested. The file gets its name
    only after it was loaded again and gave the eager module's answers within `tolerance`. `extra_files` go into the
    archive. Raises ModelError.
    """
    module = module.eval().to(memory_format=torch.channels_last)
    example = example.to(memory_format=torch.channels_last)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Readable regardless of the umask: the server may run as another user.
    with whole_file(path, mode=0o644) as draft, torch.no_grad(), without_deprecations():
        # _check compares answers for several batches, so the tracer's own check is not needed.
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
            difference = float((expected - exported(batch)).abs().max())
            if not difference <= tolerance:
                raise ModelError(
                    f"the exported model's answers differ from the eager model's by {difference:.2g} "
                    f"in a batch of {len(batch)}, more than {tolerance:g}"
                )


@contextmanager
def without_deprecations() -> Iterator[None]:
    """Suppress torch's warnings about TorchScript, its ONNX exporter, and tracing."""
    with warnings.catch_warnings():
        # torch deprecates TorchScript, but Triton's libtorch backend loads nothing else.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        # Comparing answers finds constants that a trace has taken from its example.
        warnings.simplefilter("ignore", TracerWarning)
        warnings.filterwarnings("ignore", "Constant folding|no signature found", UserWarning)
        yield
