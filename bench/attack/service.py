"""The attacked service: `gateway up`, with a port for gRPC, in a process tree with limited memory."""

import http.client
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import psutil

from bench.attack.target import ServiceOptions
from bench.services import Service, gateway_up
from gateway.settings import GIB, MIB
from gateway_local.hosts import LOOPBACK, free_port
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from gateway_plugins.keys.key_file import digest, new_key

METRICS = "/metrics"
CLASSIFIED = ('gateway_images_total{model="ensemble_model",outcome="ok"', 'gateway_images_total{outcome="ok"')
MEMORY_BYTES = 8 * GIB
"""Memory limit of one process (RLIMIT_DATA): a process that exceeds it fails without affecting the machine."""
SETTINGS: dict[str, object] = {"log_format": "json", "log_level": "info", "triton_cache_bytes": 256 * MIB}
CONNECT_SECONDS = 30.0
"""After an attack that took every connection, the service has to answer within this time."""
PROTECTED = {"gateway_cli serve": "the API", "tritonserver": "Triton", "python_backend_stub": "a model"}
"""Processes that no attack may end, by a part of their command lines."""
SLOW_DOMAIN = ".never.test"
"""Names under it never resolve if ServiceOptions.slow_names."""


@dataclass(frozen=True, slots=True)
class Running:
    """A running service; the keys are empty if it needs none."""

    service: Service
    grpc_port: int
    key: str = ""
    attacker_key: str = ""

    def protected(self) -> dict[int, str]:
        """The PROTECTED processes by process id."""
        found: dict[int, str] = {}
        for process in self.service.tree():
            with suppress(psutil.Error):
                line = " ".join(process.cmdline())
                found.update((process.pid, name) for part, name in PROTECTED.items() if part in line)
        return found

    def connect(self, timeout_seconds: float = 60.0) -> http.client.HTTPConnection:
        """A connection for a well-behaved client."""
        return http.client.HTTPConnection(LOOPBACK, self.service.port, timeout=timeout_seconds)

    def get(self, path: str) -> bytes:
        """The body of a response, whatever its status; retries while the service refuses connections."""
        deadline = time.monotonic() + CONNECT_SECONDS
        while True:
            connection = self.connect()
            try:
                connection.request("GET", path, headers={"X-API-Key": self.key} if self.key else {})
                response = connection.getresponse()
                if response.status != HTTPStatus.SERVICE_UNAVAILABLE or path != METRICS:
                    return response.read()
            except (OSError, http.client.HTTPException):
                if time.monotonic() > deadline:
                    raise
            finally:
                connection.close()
            time.sleep(0.2)

    def metric(self, *names: str) -> float:
        """The sum of metrics; a name includes its labels."""
        return sum(value for name, value in self._metrics() if name in names)

    def classified(self) -> float:
        """The number of images that have been classified."""
        return sum(value for name, value in self._metrics() if name.startswith(CLASSIFIED))

    def _metrics(self) -> list[tuple[str, float]]:
        lines = (line.rpartition(" ") for line in self.get(METRICS).decode().splitlines() if line[:1] != "#")
        return [(name, float(value)) for name, _, value in lines if name]

    def cpu_seconds(self) -> float:
        """Processor time of all processes, including those that have ended."""
        total = 0.0
        for process in self.service.tree():
            with suppress(psutil.Error):
                total += sum(process.cpu_times()[:4])
        return total

    def resident_bytes(self) -> float:
        """Resident memory of all processes."""
        total = 0
        for process in self.service.tree():
            with suppress(psutil.Error):
                total += process.memory_info().rss
        return total

    def log_size(self) -> int:
        """The size of the log in bytes."""
        return self.service.log.stat().st_size

    def log_lines(self, offset: int) -> list[bytes]:
        """The log from an offset in bytes."""
        with self.service.log.open("rb") as log:
            log.seek(offset)
            return log.read().splitlines()


def events(lines: Iterable[bytes]) -> list[dict[str, object]]:
    """The gateway's events among the lines of a log."""
    return [json.loads(line) for line in lines if line.startswith(b'{"timestamp"') and line.endswith(b"}")]


@contextmanager
def running_service(options: ServiceOptions, workers: int = 1) -> Iterator[Running]:
    """Start the service, and stop it at the end. Raises ServiceFailed."""
    limited = [sys.executable, "-c", _LIMITED, str(MEMORY_BYTES), str(options.max_open_files)]
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        settings = {**SETTINGS, "workers": workers, "grpc_port": port}
        settings |= {name: str(value).replace("FOLDER", folder) for name, value in options.settings}
        keys = [new_key() for _ in range(options.keys)]
        if keys:
            settings["api_keys_file"] = file = Path(folder) / "keys"
            quotas = {1: f" {options.quota}"}
            file.write_text("".join(f"k{n}:{digest(key.encode())}{quotas.get(n, '')}\n" for n, key in enumerate(keys)))
        if options.slow_names:
            (Path(folder) / "sitecustomize.py").write_text(_SLOW_NAMES)
            limited = ["env", f"PYTHONPATH={folder}", *limited]
        with gateway_up(DEFAULT_MODEL_REPOSITORY, prefix=limited, settings=settings) as service:
            yield Running(service, port, *keys[:2])


# In place of preexec_fn, which may deadlock in a process with threads.
_LIMITED = f"""
import os, resource, sys
resource.setrlimit({resource.RLIMIT_DATA}, (int(sys.argv[1]),) * 2)
if int(sys.argv[2]):
    resource.setrlimit({resource.RLIMIT_NOFILE}, (int(sys.argv[2]),) * 2)
os.execv(sys.argv[3], sys.argv[3:])
"""
# A resolver whose server does not answer, as glibc's waits for it: 30 s.
_SLOW_NAMES = f"""
import socket, time
resolve = socket.getaddrinfo
def getaddrinfo(host, *others, **options):
    name = host.decode() if isinstance(host, bytes) else str(host)
    if name.rstrip(".").endswith({SLOW_DOMAIN!r}):
        time.sleep(30)
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")
    return resolve(host, *others, **options)
socket.getaddrinfo = getaddrinfo
"""
