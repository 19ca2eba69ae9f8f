"""Turning a PyTorch module into a TorchScript file that Triton's libtorch backend serves."""

import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

TOLERANCE = 1e-4
"""How far the exported module's probabilities may be from the eager one's: the same float32 sums in another order."""


class ExportError(RuntimeError):
    """A module cannot be exported, or does not give the same answers afterwards; the message is for the terminal."""


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
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    os.close(descriptor)
    draft = Path(name)
    try:
        with torch.no_grad(), _without_deprecations():
            frozen = torch.jit.freeze(torch.jit.trace(module, example))  # type: ignore[no-untyped-call]
            torch.jit.save(frozen, draft, _extra_files=dict(extra_files or {}))
            exported = torch.jit.load(draft, map_location="cpu")  # type: ignore[no-untyped-call]
            _check(module, exported, example, tolerance)
        # A scratch file is the owner's alone; a model is for whoever runs the server.
        draft.chmod(0o644)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _check(eager: nn.Module, exported: nn.Module, example: Tensor, tolerance: float) -> None:
    for batch in (example, example[:1], torch.cat((example, example))):
        # More than once: TorchScript compiles anew after its first calls.
        for _ in range(3):
            difference = float((eager(batch) - exported(batch)).abs().max())
            if not difference <= tolerance:
                raise ExportError(
                    f"the exported model's answers differ from the eager model's by {difference:.2g} "
                    f"in a batch of {len(batch)}, more than {tolerance:g}"
                )


@contextmanager
def _without_deprecations() -> Iterator[None]:
    with warnings.catch_warnings():
        # TorchScript is what Triton's libtorch backend loads, whatever torch says of its future.
        for category in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings("ignore", message=r".*torch\.jit\.\w+.*deprecated", category=category)
        yield
