"""The attacked service: `gateway up`, or bench.attack.fleet, in a process tree with limited memory."""

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
from bench.services import Service, gateway_up, started, variables
from gateway.keys import add_key
from gateway.settings import GIB, MIB
from gateway_local.hosts import LOOPBACK, free_port
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY

METRICS = "/metrics"
CLASSIFIED = ('gateway_images_total{model="ensemble_model",outcome="ok"', 'gateway_images_total{outcome="ok"')
MEMORY_BYTES = 8 * GIB
"""Memory limit of one process (RLIMIT_DATA): a process that exceeds it fails without affecting the machine."""
SETTINGS: dict[str, object] = {"log_format": "json", "log_level": "info", "triton_cache_bytes": 256 * MIB}
CONNECT_SECONDS = 30.0
"""After an attack that took every connection, the service has to answer within this time."""
PROTECTED = {"gateway_cli serve": "the API", "tritonserver": "Triton", "python_backend_stub": "a model"}
"""Processes that no attack may end, by a part of their command lines."""


@dataclass(frozen=True, slots=True)
class Running:
    """A running service. If it needs API keys, `keys_file` has that of the well-behaved client and the attacker's."""

    service: Service
    workers: int = 1
    keys_file: Path | None = None
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

    def all_ready(self) -> bool:
        """Whether every Triton answers."""
        endpoints = json.loads(self.get("/health/ready")).get("endpoints", [])
        return bool(endpoints) and all(endpoint["ready"] for endpoint in endpoints)

    def metric(self, *names: str) -> float:
        """The sum of metrics; a name includes its labels."""
        return sum(value for name, value in self._metrics() if name in names)

    def classified(self) -> float:
        """The number of images that have been classified."""
        return sum(value for name, value in self._metrics() if name.startswith(CLASSIFIED))

    def _metrics(self) -> list[tuple[str, float]]:
        lines = (line.rpartition(" ") for line in self.get(METRICS).decode().splitlines() if line[:1] != "#")
        return [(name, float(value)) for name, _, value in lines if name]

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
def running_service(options: ServiceOptions, *, fleet: bool = False, workers: int = 1) -> Iterator[Running]:
    """Start the service, or a fleet of three Tritons, and stop it at the end. Raises ServiceFailed."""
    limited = [sys.executable, "-c", _LIMITED, str(MEMORY_BYTES), str(options.max_open_files)]
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        settings = {**SETTINGS, **dict(options.settings), "workers": workers}
        keys: dict[str, str] = {}
        keys_file = None
        if options.keys:
            keys_file = Path(folder) / "keys"
            keys = {"key": add_key(keys_file, "well-behaved"), "attacker_key": add_key(keys_file, "attacker")}
            settings["api_keys_file"] = keys_file
        start = gateway_up(DEFAULT_MODEL_REPOSITORY, prefix=limited, settings=settings)
        if fleet:
            port = free_port()
            command = [*limited, sys.executable, "-m", "bench.attack.fleet"]
            start = started(command, port, environment=variables({**settings, "port": port}))
        with start as service:
            yield Running(service, workers, keys_file, **keys)


# In place of preexec_fn, which may deadlock in a process with threads.
_LIMITED = f"""
import os, resource, sys
resource.setrlimit({resource.RLIMIT_DATA}, (int(sys.argv[1]),) * 2)
if int(sys.argv[2]):
    resource.setrlimit({resource.RLIMIT_NOFILE}, (int(sys.argv[2]),) * 2)
os.execv(sys.argv[3], sys.argv[3:])
"""
