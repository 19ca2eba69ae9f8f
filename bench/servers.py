"""Triton and the gateway, started for one run on free ports."""

import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from gateway.settings import variable
from gateway_local.children import end, wait_answering
from gateway_local.hosts import LOOPBACK, free_port
from gateway_local.runtime import default_cache_dir, ensure_runtime
from gateway_local.server import EmbeddedTriton

START_SECONDS = 180.0
STOP_SECONDS = 30.0

Say = Callable[[str], None]


class GatewayFailed(Exception):
    """The gateway, or another service, ended or was not ready in time; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Service:
    """A Triton with a gateway in front of it."""

    grpc_url: str
    http_url: str
    processes: dict[str, list[psutil.Process]]
    """The processes that do the work, by what they are."""


@contextmanager
def service(repository: Path, *, cache_bytes: int, say: Say, tree: Path | None = None) -> Iterator[Service]:
    """Run both, the gateway as in `gateway_at`; raises TritonRuntimeError or GatewayFailed."""
    runtime = ensure_runtime(default_cache_dir(), say)
    with EmbeddedTriton(runtime, repository, on_log=lambda _: None, cache_bytes=cache_bytes) as triton:
        triton.wait_ready(START_SECONDS)
        with gateway_at(triton.url, tree) as (http_url, gateway):
            assert triton.pid is not None
            yield Service(
                triton.url,
                http_url,
                {
                    "gateway": [psutil.Process(gateway), *psutil.Process(gateway).children(recursive=True)],
                    **_triton_processes(psutil.Process(triton.pid)),
                },
            )


def _triton_processes(server: psutil.Process) -> dict[str, list[psutil.Process]]:
    groups = {"Triton": [server]}
    for stub in server.children(recursive=True):
        # A stub's arguments hold the path of the model.py that it runs, and the name of its instance.
        text = " ".join(stub.cmdline())
        name = next((name for name in ("preprocessor", "classifier") if name in text), "Triton")
        groups.setdefault(name, []).append(stub)
    return groups


@contextmanager
def gateway_at(
    triton_url: str, tree: Path | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[tuple[str, int]]:
    """A gateway with this environment's settings and some others; its URL and process id.

    `tree` is another checkout, whose code it runs. Raises GatewayFailed.
    """
    port = free_port()
    environment = {**os.environ, **(settings or {}), variable("triton_url"): triton_url, variable("port"): str(port)}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway_cli", "serve"], env=environment, stderr=log, cwd=tree
        )
        try:
            check_answering(process, port, "/health/ready", lambda: tail_of(log.fileno()))
            yield f"http://127.0.0.1:{port}", process.pid
        finally:
            end(process, STOP_SECONDS)


def check_answering(process: "subprocess.Popen[bytes]", port: int, path: str, tail: Callable[[], str]) -> None:
    """Wait until a path of a service answers 200; raises GatewayFailed with the `tail` of its log."""
    if fault := wait_answering(process, LOOPBACK, port, path, timeout_seconds=START_SECONDS):
        raise GatewayFailed(f"{process.args!r} {fault}:\n{tail()}")


def tail_of(descriptor: int) -> str:
    """The last lines of a file that has no name."""
    with open(f"/proc/self/fd/{descriptor}") as log:  # noqa: PTH123  # the file has no other name
        return "".join(deque(log, maxlen=20))
