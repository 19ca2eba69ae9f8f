import pytest

from tests.doubles.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000.0)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals come without their pause, except in the test of it."""
    monkeypatch.setattr("gateway.api.middleware.REFUSAL_SECONDS", 0.0)
