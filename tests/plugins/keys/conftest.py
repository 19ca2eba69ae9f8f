from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway_plugins.keys import rate_store
from tests.plugins.keys.stores import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of keys, which is not there yet."""
    return tmp_path / "keys"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A running store; on a busy machine it may take longer than a service waits for it."""
    monkeypatch.setattr(rate_store, "TIMEOUT_SECONDS", 30.0)
    store = Store(tmp_path)
    store.start()
    yield store
    store.kill()
