"""The service that is attacked: `gateway up` in a process tree of its own, whose memory is limited."""

import http.client
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from gateway.children import end, wait_answering
from gateway.hosts import LOOPBACK, free_port
from gateway.settings import GIB, variable

START_SECONDS = 240.0
STOP_SECONDS = 40.0
MEMORY_BYTES = 8 * GIB
"""Of one process (RLIMIT_DATA): what bursts it fails there, and leaves the machine alone."""
UP, FLEET = ("gateway", "up"), ("bench.attack.fleet",)
SETTINGS = {"log_format": "json", "log_level": "info"}


class ServiceFailed(Exception):
    """The service ended or was not ready in time; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Running:
    """A running service: its port, its first process and its log."""

    port: int
    process: psutil.Process
    log: Path

    def tree(self) -> list[psutil.Process]:
        """Its processes."""
        return [self.process, *self.process.children(recursive=True)]

    def servants(self) -> dict[int, str]:
        """The processes that must not die: the API, Triton and its models, by their ids."""
        found = {}
        for process in self.tree():
            try:
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            for mark, name in (
                ("gateway serve", "the API"),
                ("tritonserver", "Triton"),
                ("python_backend_stub", "a model"),
            ):
                if mark in line:
                    found[process.pid] = name
        return found

    def get(self, path: str) -> bytes:
        """An answer's body, whatever its status."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        finally:
            connection.close()

    def all_ready(self) -> bool:
        """Whether every Triton answers."""
        endpoints = json.loads(self.get("/health/ready")).get("endpoints", [])
        return bool(endpoints) and all(endpoint["ready"] for endpoint in endpoints)

    def gauge(self, *names: str) -> float:
        """The sum of gauges, or of counters with the labels that a name has."""
        lines = self.get("/metrics").decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] in names)

    def events(self, offset: int) -> list[dict[str, object]]:
        """What was logged since the log had that many bytes."""
        with self.log.open("rb") as log:
            log.seek(offset)
            lines = [line for line in log.read().splitlines() if line.startswith(b'{"timestamp"')]
        return [json.loads(line) for line in lines if line.endswith(b"}")]


@contextmanager
def running_service(settings: dict[str, object], module: tuple[str, ...] = UP) -> Iterator[Running]:
    """Start it on a free port, and stop it at the end; `module` runs it. Raises ServiceFailed."""
    port = free_port()
    told = {variable(name): str(value) for name, value in {**SETTINGS, **settings, "port": port}.items()}
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", _LIMITED, str(MEMORY_BYTES), sys.executable, "-m", *module],
                env={**os.environ, **told},
                stdout=output,
                stderr=output,
            )
        running = Running(port, psutil.Process(process.pid), log)
        try:
            if fault := wait_answering(process, LOOPBACK, port, "/health/ready", timeout_seconds=START_SECONDS):
                end_of_log = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
                raise ServiceFailed(f"the service {fault}:\n{end_of_log}")
            yield running
        finally:
            end(process, STOP_SECONDS)


# In place of preexec_fn, which may deadlock in a process with threads.
_LIMITED = f"""
import os, resource, sys
resource.setrlimit({resource.RLIMIT_DATA}, (int(sys.argv[1]),) * 2)
os.execv(sys.argv[2], sys.argv[2:])
"""
