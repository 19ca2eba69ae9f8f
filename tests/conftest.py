"""What the whole suite shares: one real Triton with the default model."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tritonclient.grpc import InferenceServerClient

from gateway.embedded.runtime import DEFAULT_MODEL_REPOSITORY, Runtime, default_cache_dir, ensure_runtime
from gateway.embedded.server import EmbeddedTriton
from gateway.networks.export import export_default


def pytest_configure() -> None:
    """Let Ctrl-C end what tests start: a shell ignores it for its background jobs, and children inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


STARTS_TRITON = {"runtime", "triton", "start_triton"}
"""The fixtures behind every Triton that a test starts."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts a Triton, so that `make check` can leave it out and nobody can forget the mark."""
    for item in items:
        if STARTS_TRITON & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.triton)


@pytest.fixture(scope="session")
def runtime() -> Runtime:
    """Triton's runtime in the user's cache: fetched by the first run, found by every other."""
    return ensure_runtime(default_cache_dir(), print)


@pytest.fixture(scope="session")
def model_repository() -> Path:
    """The project's own model repository, with the default model exported into it."""
    export_default(DEFAULT_MODEL_REPOSITORY, print)
    return DEFAULT_MODEL_REPOSITORY


@pytest.fixture(scope="session")
def triton(runtime: Runtime, model_repository: Path) -> Iterator[EmbeddedTriton]:
    """A ready Triton on free ports, with its response cache on."""
    with EmbeddedTriton(runtime, model_repository, on_log=print) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="session")
def triton_client(triton: EmbeddedTriton) -> Iterator[InferenceServerClient]:
    """A blocking gRPC client of `triton`."""
    with InferenceServerClient(triton.url) as connection:
        yield connection
