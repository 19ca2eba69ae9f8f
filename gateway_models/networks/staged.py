"""Loads the function of a version's folder; only in the processes of `jobs` and `function_process`."""

import importlib.util
from pathlib import Path
from typing import Any

from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.functions import ADAPTER


def load_staged(folder: Path) -> tuple[Any, Any]:
    """The function in a folder that FunctionSource.stage wrote, and its adapter module; raises ModelFileError."""
    # The adapter's copy in the folder, so that the probe runs the same code as Triton.
    spec = importlib.util.spec_from_file_location("served_function", folder / ADAPTER)
    assert spec is not None
    assert spec.loader is not None
    adapter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(adapter)
    try:
        return adapter.ServedFunction(folder, "cpu"), adapter
    except adapter.FunctionError as exc:
        raise ModelFileError(str(exc)) from exc
