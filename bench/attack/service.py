"""The attacked service: `gateway up` in a process tree with limited memory."""

import http.client
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.attack.target import ServiceOptions
from gateway.keys import add_key
from gateway.settings import GIB, variable
from gateway_local.children import end, wait_answering
from gateway_local.hosts import LOOPBACK, free_port

METRICS = "/metrics"
CLASSIFIED = ('gateway_images_total{model="ensemble_model",outcome="ok"', 'gateway_images_total{outcome="ok"')
START_SECONDS = 240.0
STOP_SECONDS = 40.0
MEMORY_BYTES = 8 * GIB
"""Memory limit of one process (RLIMIT_DATA): a process that exceeds it fails without affecting the machine."""
UP, FLEET = ("gateway_cli", "up"), ("bench.attack.fleet",)
SETTINGS = {"log_format": "json", "log_level": "info"}
CONNECT_SECONDS = 30.0
"""After an attack that took every connection, the service has to answer within this time."""


class ServiceFailed(Exception):
    """The service ended or was not ready in time; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Running:
    """A running service: its port, its first process and its log.

    Where it needs API keys, `keys_file` accepts `key`, the well-behaved client's, and `attacker_key`.
    """

    port: int
    process: psutil.Process
    log: Path
    workers: int = 1
    keys_file: Path | None = None
    key: str = ""
    attacker_key: str = ""

    def tree(self) -> list[psutil.Process]:
        """The service's processes."""
        return [self.process, *self.process.children(recursive=True)]

    def servants(self) -> dict[int, str]:
        """The ids of the processes that must not die: the API, Triton and its models."""
        found = {}
        for process in self.tree():
            try:
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            for mark, name in (
                ("gateway_cli serve", "the API"),
                ("tritonserver", "Triton"),
                ("python_backend_stub", "a model"),
            ):
                if mark in line:
                    found[process.pid] = name
        return found

    def get(self, path: str) -> bytes:
        """A response's body, whatever its status; retries while the service refuses connections."""
        deadline = time.monotonic() + CONNECT_SECONDS
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            try:
                connection.request("GET", path, headers={"X-API-Key": self.key} if self.key else {})
                answer = connection.getresponse()
                if answer.status != http.HTTPStatus.SERVICE_UNAVAILABLE or path != METRICS:
                    return answer.read()
            except (OSError, http.client.HTTPException):
                if time.monotonic() > deadline:
                    raise
            finally:
                connection.close()
            time.sleep(0.2)

    def all_ready(self) -> bool:
        """Whether every Triton answers."""
        endpoints = json.loads(self.get("/health/ready")).get("endpoints", [])
        return bool(endpoints) and all(endpoint["ready"] for endpoint in endpoints)

    def gauge(self, *names: str) -> float:
        """The sum of gauges, or of counters with the labels that a name has."""
        lines = self.get(METRICS).decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] in names)

    def classified(self) -> float:
        """How many images have been classified."""
        lines = self.get(METRICS).decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(CLASSIFIED))

    def lines(self, offset: int) -> list[bytes]:
        """The log from an offset in bytes."""
        with self.log.open("rb") as log:
            log.seek(offset)
            return log.read().splitlines()


def events(lines: Iterable[bytes]) -> list[dict[str, object]]:
    """The gateway's events among the lines of a log."""
    return [json.loads(line) for line in lines if line.startswith(b'{"timestamp"') and line.endswith(b"}")]


@contextmanager
def running_service(options: ServiceOptions, module: tuple[str, ...] = UP, workers: int = 1) -> Iterator[Running]:
    """Start the service by `module` on a free port, and stop it at the end. Raises ServiceFailed."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        log, keys_file = Path(folder) / "log", Path(folder) / "keys"
        settings: dict[str, object] = {**SETTINGS, **dict(options.settings), "port": port, "workers": workers}
        keys: dict[str, str] = {}
        if options.keys:
            keys = {"key": add_key(keys_file, "well-behaved"), "attacker_key": add_key(keys_file, "attacker")}
            settings["api_keys_file"] = keys_file
        with log.open("wb") as output:
            limits = [str(MEMORY_BYTES), str(options.max_open_files)]
            process = subprocess.Popen(
                [sys.executable, "-c", _LIMITED, *limits, sys.executable, "-m", *module],
                env={**os.environ, **{variable(name): str(value) for name, value in settings.items()}},
                stdout=output,
                stderr=output,
            )
        running = Running(port, psutil.Process(process.pid), log, workers, keys_file if keys else None, **keys)
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
if int(sys.argv[2]):
    resource.setrlimit({resource.RLIMIT_NOFILE}, (int(sys.argv[2]),) * 2)
os.execv(sys.argv[3], sys.argv[3:])
"""
