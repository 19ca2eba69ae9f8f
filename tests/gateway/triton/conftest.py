from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def locks_of_this_test(tmp_path: Path, monkeypatch) -> None:
    """Healers of tests that run at the same time have nothing to do with each other."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
