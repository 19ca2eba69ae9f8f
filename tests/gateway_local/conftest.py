"""Fixtures of the tests of this package."""

from pathlib import Path

import pytest

from tests.shipped import copy_models


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy of the shipped models without their weights and the sizes of this machine, to be changed."""
    models = copy_models(tmp_path / "models", "model.pt", "model.onnx", "configs")
    (models / "classifier" / "1").mkdir(exist_ok=True)  # a new clone, which has no weights, has no such folder
    return models
