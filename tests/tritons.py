"""Triton servers of tests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

from gateway_local.runtime.base import TritonRuntime
from gateway_local.server import EmbeddedTriton
from tests.processes import children, free_port


@contextmanager
def running_triton(
    runtime: TritonRuntime,
    repository: Path,
    *,
    on_log: Callable[[str], None] = print,
    kind: type[EmbeddedTriton] = EmbeddedTriton,
    **options: object,
) -> Iterator[EmbeddedTriton]:
    """A ready Triton, killed at the end: a clean stop takes seconds, and has its own tests.

    It has ports of tests: the kernel could give ports that Triton chooses to another program before Triton listens.
    """
    ports = {name: free_port() for name in ("grpc_port", "http_port", "metrics_port")}
    server = kind(runtime, repository, on_log=on_log, **ports | options)
    try:
        server.start()
        server.wait_ready()
        yield server
    finally:
        server.stop(grace_seconds=0)


def inferences(server: EmbeddedTriton, model: str) -> int:
    """How many inferences of a model have succeeded. Triton counts each after it has answered: wait for the number."""
    answer = httpx.get(f"{server.http_url}/v2/models/{model}/stats", timeout=30)
    return int(answer.json()["model_stats"][0]["inference_stats"]["success"]["count"])


def stub_processes(server: EmbeddedTriton, path: str) -> list[psutil.Process]:
    """The processes of Triton's Python backend with `/path/` on their command lines, such as a model's name."""
    return children(server.pid, f"/{path}/")
