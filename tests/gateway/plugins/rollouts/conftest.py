"""The event loop of tests that control timing step by step."""

from tests.gateway.inference.conftest import loop

__all__ = ["loop"]
