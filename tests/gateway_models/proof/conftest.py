"""Fixtures of the proofs on a real Triton."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway_local.runtime.base import TritonRuntime
from gateway_local.server import EmbeddedTriton
from tests.tritons import running_triton


@pytest.fixture(scope="module")
def server(runtime: TritonRuntime, repository: Path) -> Iterator[EmbeddedTriton]:
    """A Triton with all models of the module's repository."""
    with running_triton(runtime, repository) as server:
        yield server
