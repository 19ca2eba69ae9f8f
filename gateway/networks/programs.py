"""Programs of torch.export, in .pt2 files: loaded, and written where a trace of them would answer otherwise."""

from pathlib import Path

import torch
from torch import Tensor, nn

from gateway.files import whole_file
from gateway.networks.files import ModelFileError
from gateway.networks.torchscript import TOLERANCE, ExportError, largest_difference, without_deprecations

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

    def forward(self, images: Tensor) -> object:
        """What the program gives; raises ModelFileError where the batch's size is built in."""
        try:
            return self.program(images)
        except AssertionError as exc:
            if "size()[0]" in str(exc):
                raise ModelFileError(f"it takes a fixed batch, or a bounded one ({exc}): {ANY_BATCH}") from exc
            raise


def load_program(path: Path) -> nn.Module:
    """Load a .pt2 file onto the CPU; raises ExportError where it is damaged or of another torch."""
    try:
        with without_deprecations():
            return Program(torch.export.load(path).module())
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
            with torch.no_grad(), without_deprecations():
                shapes = {0: torch.export.Dim.DYNAMIC}
                program = torch.export.export(module.eval(), (example,), dynamic_shapes=(shapes,))
                # torch wants the ending, which a draft does not have.
                with draft.open("wb") as file:
                    torch.export.save(program, file)
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
