"""Imports a user's Python code, and describes its errors; copied next to model.py."""

import importlib.util
import inspect
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any


class UserCodeError(Exception):
    """Code cannot be loaded, or what it returns cannot be served; the message names the reason and what to do."""


def imported(code: Path, name: str) -> types.ModuleType:
    """Import NAME.py of a folder, whose other files it may import; raises UserCodeError."""
    sys.path.insert(0, str(code))
    sys.dont_write_bytecode = True
    # Under another name if that is taken by a loaded module, such as Triton's model.py.
    spec = importlib.util.spec_from_file_location(f"user_{name}" if name in sys.modules else name, code / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as exc:
        raise UserCodeError(
            f"{name}.py imports {exc.name!r}, which this environment does not have: install it where Triton runs, "
            "or add the file that has it with --include"
        ) from exc
    except (Exception, SystemExit) as exc:
        raise UserCodeError(f"{name}.py cannot be imported: {described(exc)}") from exc
    return module


def described(exc: BaseException) -> str:
    """An exception as one line, with the file and line that raised it."""
    if isinstance(exc, UserCodeError):
        return str(exc)
    frame = exc.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = f" ({Path(frame.tb_frame.f_code.co_filename).name}, line {frame.tb_lineno})" if frame else ""
    return f"{type(exc).__name__}: {exc}{where}"


def needed(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters without a default."""
    return [
        each
        for each in parameters(function)
        if each.default is inspect.Parameter.empty and each.kind is not inspect.Parameter.VAR_KEYWORD
    ]


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a function, without *arguments."""
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # builtins have no signature
        return []
    return [each for each in found if each.kind is not inspect.Parameter.VAR_POSITIONAL]
