from pathlib import Path

import pytest

from gateway.triton.health import recovery


@pytest.fixture(autouse=True)
def no_jitter(monkeypatch) -> None:
    monkeypatch.setattr(recovery, "JITTER_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def locks_of_this_test(tmp_path: Path, monkeypatch) -> None:
    """Tests that run at the same time share no machine lock."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
