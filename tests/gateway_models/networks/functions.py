"""Python functions for the tests: files of them, and their trial in this process, which saves the import of torch."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway_models.networks.functions import FunctionConfig, find_function
from gateway_models.repository.entry import Outcome

COLOURS = """
import numpy as np
from numpy.typing import NDArray

def classify(images: NDArray[np.uint8]):
    colours = images.mean(axis=(1, 2)) / 255
    return np.concatenate([colours, 1 - colours], axis=1) * 7
"""
"""Logits of six classes, of uint8 [N, H, W, 3]."""

OURS = {"colours", "mine", "served_function", "pytriton"}
"""Modules that the tests' functions import, and what stands in for PyTriton."""

PYTRITON = """
import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton

@batch
def infer_func(**inputs: np.ndarray):
    (images,) = inputs.values()
    colours = images.astype(np.float32).mean(axis=(1, 2)) / 255
    return [np.concatenate([colours, 1 - colours], axis=1) * 7]

if __name__ == "__main__":
    with Triton() as triton:
        triton.bind(
            model_name="Colours",
            infer_func=infer_func,
            inputs=[Tensor(name="images", dtype=np.uint8, shape=(32, 32, 3))],
            outputs=[Tensor(name="scores", dtype=np.float32, shape=(6,))],
            config=ModelConfig(max_batch_size=64),
        )
        triton.serve()
"""
"""The same in the shape of PyTriton's quick start."""


def save_function(folder: Path, code: str = COLOURS, name: str = "colours") -> Path:
    path = folder / f"{name}.py"
    path.write_text(code)
    return path


def tried(source: str, folder: Path, *, said: dict[str, str] | None = None, **changes) -> Outcome:
    """The trial of FILE.py:NAME on pixels, staged in `folder`; raises what it raises."""
    from gateway_models.networks import jobs
    from tests.gateway_models.networks.builders import job

    function = find_function(source)
    function.stage(folder / "staged", FunctionConfig(function.path.stem, function.name, **(said or {})))
    return jobs.do(job(function.location, "function", folder / "staged", **{"labels": 6, "pixels": True, **changes}))


@contextmanager
def own_modules() -> Iterator[None]:
    """What functions put into sys goes with the test; torch's modules, imported meanwhile, stay."""
    path, writes = list(sys.path), sys.dont_write_bytecode
    yield
    sys.path[:], sys.dont_write_bytecode = path, writes
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS or name.startswith("function_")]:
        del sys.modules[name]
