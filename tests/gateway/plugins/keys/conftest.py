from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of keys, which does not exist yet."""
    return tmp_path / "keys"
