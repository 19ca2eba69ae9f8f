"""The function of a version's folder, in this process: that of `jobs` or of `function_process`, never the gateway's."""

import importlib.util
from pathlib import Path
from typing import Any

from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.functions import ADAPTER


def load_staged(folder: Path) -> tuple[Any, Any]:
    """The function of a folder that FunctionSource.stage wrote, and its adapter's module; raises ModelFileError."""
    # The adapter's own copy, so that what is tried is what Triton will run.
    spec = importlib.util.spec_from_file_location("served_function", folder / ADAPTER)
    assert spec is not None
    assert spec.loader is not None
    adapter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(adapter)
    try:
        return adapter.ServedFunction(folder, "cpu"), adapter
    except adapter.FunctionError as exc:
        raise ModelFileError(str(exc)) from exc
