"""Checks torch.export and TorchScript files before torch reads them, with the code that Triton's backend uses."""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

from gateway_local.paths import DEFAULT_BACKENDS
from gateway_models.networks.file_kinds import EXPORT, ModelFileError

ADVICE = (
    "None of its code was executed. If it is a model of plain layers, save it again: {export}; or use its weights "
    "as safetensors with torchvision:ARCH or timm:ARCH. {trust}"
)
TRUST = "If its author may run code here, add --trust"
NO_TRUST = "--trust does not change this: a served model must not access files"


def _load() -> ModuleType:
    """Load the backend's module from its path; Triton needs it in a folder that is not on the import path."""
    spec = importlib.util.spec_from_file_location("torch_archives", DEFAULT_BACKENDS / "pytorch" / "torch_archives.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_archives = _load()
path_of = _archives.path_of


@contextmanager
def clean_program(path: Path) -> Iterator[BinaryIO]:
    """A copy of a .pt2 file with only its graph and its tensors; raises ModelFileError."""
    with _opened(_archives.clean_program, path, TRUST) as file:
        yield file


@contextmanager
def clean_torchscript(path: Path) -> Iterator[BinaryIO]:
    """A copy of a TorchScript file whose code uses nothing but tensors; raises ModelFileError."""
    with _opened(_archives.clean_torchscript, path, NO_TRUST) as file:
        yield file


def _opened(clean: Callable[[Path], BinaryIO], path: Path, trust: str) -> BinaryIO:
    try:
        return clean(path)
    except _archives.UnsafeArchive as exc:
        raise ModelFileError(f"{path}: {exc}. {ADVICE.format(export=EXPORT, trust=trust)}") from exc
    except _archives.DamagedArchive as exc:
        raise ModelFileError(f"{path} cannot be loaded: {exc}") from exc
