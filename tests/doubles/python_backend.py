"""Triton's Python backend, for the files of models that tests import into their own process."""

import importlib.util
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gateway_models.networks.served_process import Tensor, TritonModelException, triton_module

Refused = TritonModelException
Input = Tensor


@dataclass
class Log:
    """What models log."""

    info: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def _from_dlpack(name: str, value: Any) -> tuple[str, Any]:
    from torch.utils.dlpack import from_dlpack

    return name, from_dlpack(value)


def python_backend(patch: pytest.MonkeyPatch, folder: Path | str = "") -> Log:
    """Give this process a `triton_python_backend_utils` for the model in a folder; outputs are (name, torch.Tensor)."""
    log, module = Log(), triton_module(str(folder))
    logger = SimpleNamespace(log_info=log.info.append, log_warn=log.warnings.append, log_error=log.errors.append)
    vars(module).update(Logger=logger, Tensor=SimpleNamespace(from_dlpack=_from_dlpack))
    patch.setitem(sys.modules, module.__name__, module)
    return log


def imported(patch: pytest.MonkeyPatch, path: Path) -> ModuleType:
    """Import a model's file again, with the modules of its folder and the next ones, as Triton's stub does."""
    patch.syspath_prepend(path.parent)
    for beside in path.parent.parent.glob("*/*.py"):
        patch.delitem(sys.modules, beside.stem, raising=False)
    spec = importlib.util.spec_from_file_location(f"{path.stem}_under_test", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
