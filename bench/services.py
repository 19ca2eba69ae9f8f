"""Starts every service that is measured: `gateway up`, `gateway serve` alone, or another server, on a free port.

Between its turns a service is paused with SIGSTOP, all processes of it, so that the measured one has the machine to
itself.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from gateway.plugin_loading import environment_of, settings_class
from gateway_local.children import Waited, is_ok, wait_ready
from gateway_local.hosts import LOOPBACK, free_port
from gateway_local.memory_plan import machine_plan
from gateway_local.sizing import CONFIG, completed_texts

Settings = settings_class()

START_SECONDS = 300.0
STOP_SECONDS = 60.0
CHILDREN_SECONDS = 3.0
"""Time for a service's child processes to end after it; LitServe leaves some behind."""
RESUME_SECONDS = 60.0
ANSWER_SECONDS = 5.0
LEAVES_SECONDS = 0.1
"""Time between resuming a service's child processes and their parents, whose health checks expect them to answer."""
LOG_LINES = 20


class ServiceFailed(Exception):
    """A service ended or was not ready in time; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Service:
    """A running service."""

    url: str
    process: psutil.Process
    log: Path
    ready: str = "/health/ready"
    """The path that answers 200 while the service can classify."""

    @property
    def port(self) -> int:
        """The HTTP port."""
        return int(self.url.rpartition(":")[2])

    def tree(self) -> list[psutil.Process]:
        """The service's processes, parents first."""
        with suppress(psutil.NoSuchProcess):
            return [self.process, *self.process.children(recursive=True)]
        return []

    def groups(self) -> dict[str, list[psutil.Process]]:
        """The service's processes by their role: gateway, Triton, preprocessor, classifier."""
        groups: dict[str, list[psutil.Process]] = {"gateway": []}
        for process in self.tree():
            with suppress(psutil.Error):
                groups.setdefault(_role(" ".join(process.cmdline())), []).append(process)
        return groups

    @property
    def api(self) -> psutil.Process:
        """The process of the API's only worker."""
        return next(process for process in self.tree() if "gateway.worker" in " ".join(process.cmdline()))

    def pause(self) -> None:
        """Stop all processes, parents first: a parent that runs on would miss its children."""
        for process in self.tree():
            with suppress(psutil.Error):
                process.suspend()

    def resume(self) -> None:
        """Continue all processes, children first, and wait until the service is ready; raises ServiceFailed."""
        tree = self.tree()
        for processes in ([each for each in tree if not each.children()], tree):
            for process in processes:
                with suppress(psutil.Error):
                    process.resume()
            time.sleep(LEAVES_SECONDS)
        ready = wait_ready(
            lambda: is_ok(LOOPBACK, self.port, self.ready, timeout_seconds=ANSWER_SECONDS),
            self.process.is_running,
            RESUME_SECONDS,
        )
        if ready is not Waited.READY:
            raise ServiceFailed(f"{self.url} was not ready {RESUME_SECONDS:g} s after its pause:\n{self.end_of_log()}")

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Resume a paused service, and pause it again at the end."""
        self.resume()
        try:
            yield
        finally:
            self.pause()

    def end_of_log(self) -> str:
        """The last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])

    def end(self) -> None:
        """Stop the service, and kill processes that have not ended in time."""
        tree = self.tree()
        for process in tree:
            with suppress(psutil.Error):
                process.resume()
        with suppress(psutil.Error):
            self.process.send_signal(signal.SIGTERM)
        psutil.wait_procs([self.process], STOP_SECONDS)
        _, alive = psutil.wait_procs(tree, CHILDREN_SECONDS)
        for process in alive:
            with suppress(psutil.Error):
                process.kill()


def _role(command_line: str) -> str:
    if "python_backend_stub" in command_line:
        return "preprocessor" if "preprocessor" in command_line else "classifier"
    return "Triton" if "tritonserver" in command_line else "gateway"


@contextmanager
def started(
    command: Sequence[str],
    port: int,
    *,
    environment: Mapping[str, str] | None = None,
    ready: str = "/health/ready",
    cwd: Path | None = None,
) -> Iterator[Service]:
    """Run a command that serves HTTP on a port, and wait until it is ready. Raises ServiceFailed."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env={**os.environ, **(environment or {})}, stdout=output, stderr=output, cwd=cwd
            )
        service = Service(f"http://{LOOPBACK}:{port}", psutil.Process(process.pid), log, ready)
        try:
            waited = wait_ready(
                lambda: is_ok(LOOPBACK, port, ready, timeout_seconds=ANSWER_SECONDS),
                lambda: process.poll() is None,
                START_SECONDS,
            )
            if waited is not Waited.READY:
                raise ServiceFailed(f"{' '.join(command)} is not ready ({waited.value}):\n{service.end_of_log()}")
            yield service
        finally:
            service.end()
            process.wait()


@contextmanager
def gateway_up(
    repository: Path,
    *,
    tree: Path | None = None,
    prefix: Sequence[str] = (),
    settings: Mapping[str, object] | None = None,
) -> Iterator[Service]:
    """`gateway up` with a model repository, by default without Triton's response cache.

    `tree` is another checkout, whose code runs, with as many instances as this checkout would have: they are written
    into the repository, since an older checkout may start one of each where none are written, whose caches stay warmer.
    `prefix` are the first words of the command line, for a launcher; GATEWAY_ variables and `settings` reach the
    service. Raises ServiceFailed.
    """
    if tree is not None:
        write_counts(repository)
    port = free_port()
    options = ["--host", LOOPBACK, "--port", str(port)]
    command = [*prefix, sys.executable, "-m", "gateway", "up", *options, "--model-repository", str(repository)]
    environment = environment_of({"triton_cache_bytes": 0, **(settings or {})})
    with started(command, port, environment=environment, cwd=tree) as service:
        yield service


def write_counts(repository: Path) -> None:
    """Write the counts that `gateway up` would choose into a repository's config.pbtxt files."""
    for name, text in completed_texts(repository, machine_plan(Settings(), repository)).items():
        (repository / name / CONFIG).write_text(text)
