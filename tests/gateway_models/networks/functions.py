"""Python functions for the tests: files of them, and their trial in this process, which saves the import of torch."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway_models.networks.functions import FunctionSource, find_function
from gateway_models.repository.entry import Outcome

COLOURS = """
import numpy as np
from numpy.typing import NDArray

def classify(images: NDArray[np.uint8]):
    colours = images.mean(axis=(1, 2)) / 255
    return np.concatenate([colours, 1 - colours], axis=1) * 7 - 4
"""
"""Logits of six classes, from uint8 [N, H, W, 3]."""

OURS = {"colours", "mine", "served", "served_code"}
"""Modules that the tests' functions import."""


def save_function(folder: Path, code: str = COLOURS, name: str = "colours") -> Path:
    path = folder / f"{name}.py"
    path.write_text(code)
    return path


def staged(function: FunctionSource, folder: Path, **said: str) -> Path:
    """A folder for Triton with the function."""
    folder.mkdir(parents=True, exist_ok=True)
    function.stage("function", folder, **{"input": "", "activation": "none", **said})
    return folder


def tried(source: str, folder: Path, *, said: dict[str, str] | None = None, **changes) -> Outcome:
    """The trial of FILE.py:NAME on pixels, staged in `folder`; raises the trial's errors."""
    from gateway_models.networks import jobs
    from tests.gateway_models.networks.builders import job

    function = find_function(source)
    staged(function, folder / "staged", **(said or {}))
    return jobs.do(job(function.location, "function", folder / "staged", **{"labels": 6, "pixels": True, **changes}))


@contextmanager
def own_modules() -> Iterator[None]:
    """Remove from sys what functions put there; torch's modules, imported meanwhile, stay."""
    path, writes = list(sys.path), sys.dont_write_bytecode
    yield
    sys.path[:], sys.dont_write_bytecode = path, writes
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS or name.startswith("user_")]:
        del sys.modules[name]
