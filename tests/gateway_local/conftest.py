"""Fixtures of the tests of this package."""

import shutil
from pathlib import Path

import pytest

from gateway_local.paths import SHIPPED_MODELS


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy of the shipped models without their weights and the sizes of this machine, to be changed."""
    ignored = shutil.ignore_patterns("model.pt", "model.onnx", "configs", "__pycache__")
    return Path(shutil.copytree(SHIPPED_MODELS, tmp_path / "models", ignore=ignored))
