"""The models that come with the project. The user of a checkout may have added others."""

import shutil
from pathlib import Path

from gateway_local.paths import DEFAULT_MODEL_REPOSITORY

NAMES = ("classifier", "ensemble_model", "preprocessor", "sequence_model")


def copy_models(folder: Path, *ignored: str) -> Path:
    """Copy the project's models to a new folder, without files of these names, and return it."""
    ignore = shutil.ignore_patterns("__pycache__", *ignored)
    for name in NAMES:
        shutil.copytree(DEFAULT_MODEL_REPOSITORY / name, folder / name, ignore=ignore)
    return folder
