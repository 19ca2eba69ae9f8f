"""Starting the gateway as users start it: in a separate process."""

import functools
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from gateway.plugin_loading import environment_of
from gateway_local.children import is_ok
from gateway_local.hosts import LOOPBACK
from tests import warm

PROJECT = Path(__file__).resolve().parents[1]
PACKAGES = ("gateway", "gateway_client", "gateway_local", "gateway_models")
START_SECONDS = 180
"""Longest time in which a gateway starts: each of several workers imports everything, on a busy machine."""
SERVE = "import sys; from gateway.command_line.main import main; sys.argv[1:] = ['serve']; main()"
ALONE = "from gateway.worker import main; main()"
"""The API without the supervisor of `gateway serve`, which would start it in a cold process."""


def python(*arguments: object, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python in the project, which must exit with `code`; `options` are for subprocess.run."""
    known = {"cwd": PROJECT, "capture_output": True, "text": True, "timeout": 280, **options}
    done: subprocess.CompletedProcess[str] = subprocess.run(
        [sys.executable, *map(str, arguments)], check=False, **known
    )
    assert done.returncode == code, done.stderr
    return done


FIRST_PORT, PORTS, EPHEMERAL = 20_000, 250, 32_768
"""The ports of tests: each process has PORTS of them, below the ports that the kernel hands out."""


@functools.cache
def _ports() -> tuple[socket.socket, Iterator[int]]:
    """The ports of this process, and a Unix socket whose name keeps them from other test runs on this machine."""
    claim = socket.socket(socket.AF_UNIX)
    for first in range(FIRST_PORT, EPHEMERAL - PORTS, PORTS):
        with suppress(OSError):  # another process has them
            claim.bind(f"\0ports of tests from {first}")
            return claim, itertools.cycle(range(first, first + PORTS))
    raise AssertionError("other test processes have all ports")


def free_port() -> int:
    """A free port that neither the kernel nor another test process hands out meanwhile."""
    for port in itertools.islice(_ports()[1], PORTS):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError(f"the {PORTS} ports of this process are in use")


def environment(**settings: object) -> dict[str, str]:
    """This process's environment, with the given settings and no others but the plug-ins that are off."""
    kept = {name for name in os.environ if not name.startswith("GATEWAY_") or name == "GATEWAY_PLUGINS_OFF"}
    inherited = {name: os.environ[name] for name in kept}
    return {**inherited, **environment_of(settings)}


@dataclass(frozen=True)
class Gateway:
    url: str
    process: subprocess.Popen[bytes] | warm.Process
    log: Path

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self, **options) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=120, **options)

    def connect(self, timeout_seconds: float = 60) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout_seconds)

    def metric(self, name: str) -> float:
        """The value of a metric, given with its labels as on the page, such as `name{label="value"}`."""
        text = httpx.get(f"{self.url}/metrics", timeout=60).text
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        assert found, name
        return float(found[1])

    def events(self, since: int = 0) -> list[dict[str, Any]]:
        """The events of the log from an offset in bytes on."""
        lines = self.log.read_bytes()[since:].rpartition(b"\n")[0].splitlines()  # the last one may be half written
        return [json.loads(line) for line in lines if line.startswith(b"{")]

    def faults(self, since: int = 0) -> list[dict[str, Any]]:
        """The events that report an error of the service itself."""
        return [event for event in self.events(since) if event["level"] in ("error", "critical")]

    def resident_bytes(self) -> int:
        """Memory of the process and its workers."""
        process = psutil.Process(self.process.pid)
        return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))


@contextmanager
def running_gateway(
    log: Path,
    *,
    port: int | None = None,
    wait_ready: bool = True,
    program: str = ALONE,
    workers: int = 1,
    supervised: bool = False,
    directory: Path = PROJECT,
    **settings: object,
) -> Iterator[Gateway]:
    """The API on a port, by default a free one, with its log in a file: `gateway serve` if it is `supervised`.

    Several workers are. A supervised one runs in a directory, which may have a file .env.

    It is stopped at the end, and then its exit code must be 0, unless it was killed (SIGKILL) before.
    """
    port = port or free_port()
    variables = environment(port=port, log_format="json", workers=workers, **settings)
    variables["XDG_STATE_HOME"] = str(log.parent)  # for the service's record
    process: subprocess.Popen[bytes] | warm.Process
    with log.open("wb") as stderr:
        if workers == 1 and not supervised:
            process = warm.start(program, environment=variables, stderr=stderr.fileno())
        else:
            process = subprocess.Popen([sys.executable, "-c", SERVE], env=variables, cwd=directory, stderr=stderr)
    gateway = Gateway(f"http://127.0.0.1:{port}", process, log)
    try:
        path = "/health/ready" if wait_ready else "/health/live"
        # A process that has ended fails the assertion below, which shows its log.
        is_up = lambda: is_ok(LOOPBACK, gateway.port, path, timeout_seconds=60)  # noqa: E731
        wait_for(lambda: process.poll() is not None or is_up(), timeout_seconds=START_SECONDS)
        assert process.poll() is None, log.read_text()
        yield gateway
    finally:
        killed = process.poll() == -signal.SIGKILL
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()
    assert killed or process.returncode == 0, log.read_text()


def is_gone(process: psutil.Process) -> bool:
    """Whether a process has ended, also if its parent has not noticed."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def children(pid: int, text: str) -> list[psutil.Process]:
    """The running descendants of a process that have a text in a part of their command lines."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended since, or is a zombie
            if any(text in part for part in process.cmdline()):
                found.append(process)
    return found


def listens(port: int) -> bool:
    """Whether a port of this machine takes connections."""
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0


def wait_for(condition, *, timeout_seconds: float = 60, process: subprocess.Popen | warm.Process | None = None) -> Any:
    """The value of a condition once it holds; fails after the timeout, or when `process`, on which it depends, ends."""
    deadline = time.monotonic() + timeout_seconds
    while not (value := condition()):
        assert process is None or process.poll() is None, f"the process ended with {process.returncode}"
        assert time.monotonic() < deadline, f"not within {timeout_seconds} s"
        time.sleep(0.05)
    return value
