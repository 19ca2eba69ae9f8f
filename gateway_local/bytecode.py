"""Compiles the Python of a repository's models in advance.

Triton's stub writes the bytecode of model.py into the model's folder when it loads it, regardless of the environment,
and Triton takes that for a change: the next request to load the model would start all of its processes again.
"""

import compileall
from pathlib import Path


def compile_models(repository: Path) -> None:
    """Write the bytecode of models that lack it; a folder that cannot be written to stays as it is."""
    for version in repository.glob("*/[0-9]*"):
        compileall.compile_dir(version, quiet=2)
