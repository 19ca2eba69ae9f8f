"""Triton servers of tests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway_local.runtime import Runtime
from gateway_local.server import EmbeddedTriton


@contextmanager
def running_triton(
    runtime: Runtime,
    repository: Path,
    *,
    on_log: Callable[[str], None] = print,
    kind: type[EmbeddedTriton] = EmbeddedTriton,
    **options: object,
) -> Iterator[EmbeddedTriton]:
    """A ready Triton, killed at the end: a clean stop takes seconds, and has its own tests."""
    server = kind(runtime, repository, on_log=on_log, **options)
    try:
        server.start()
        server.wait_ready()
        yield server
    finally:
        server.stop(grace_seconds=0)
