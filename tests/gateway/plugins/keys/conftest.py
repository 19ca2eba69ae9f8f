from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of keys, which is not there yet."""
    return tmp_path / "keys"
