"""A Triton server as a child process: started, watched and stopped cleanly."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType

from gateway.machine.capacity import Plan, plan
from gateway.machine.child_environment import child_environment
from gateway.machine.cores import usable_cores
from gateway_client.files import is_hidden
from gateway_local import sizing
from gateway_local.bytecode import compile_models
from gateway_local.children import POLL_SECONDS, Waited, get, is_ok, wait_ready
from gateway_local.hosts import authority, reachable
from gateway_local.runtime.base import TritonRuntime, TritonRuntimeError
from gateway_local.server_log import error_lines
from gateway_local.sizing import SizedRepository

MIB = 2**20
LOG_PREFIX = "triton | "
LOOPBACK = "127.0.0.1"
KEPT_LOG_LINES = 1_000

# Each process of a model has a separate region, which is allocated at its start and grows as calls need it.
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # where POSIX shared memory lives on Linux
SHM_BYTES = 16 * MIB
SHM_GROWTH_BYTES = 16 * MIB

EXIT_TIMEOUT_SECONDS = 5
GRACE_SECONDS = EXIT_TIMEOUT_SECONDS + 5.0
"""Time that requests in flight have to finish when Triton is stopped."""
GROUP_TIMEOUT_SECONDS = 10.0
LAST_RESPONSES_SECONDS = 0.3
"""Pause before a finished Triton is killed: its results are still on their way to the clients."""
REAPER = ("/bin/sh", "-c", """trap '' INT TERM HUP; read _; kill -s KILL -- "-$1" """, "reaper")
"""Kills the process group whose number follows when its standard input ends, which is when this process dies. The
signal on a parent's death (PR_SET_PDEATHSIG) reaches Triton, but not its children: a stub that waits for a lock held by
a killed Triton would wait for ever."""
FINISHED = "Found 0 live models"
"""Triton logs this line during its exit when all models are unloaded, each after its last inference. Its line "Found 0
model versions that have in-flight inferences" comes while models are still computing."""
RESPONSE_TIMEOUT_SECONDS = 2.0


class PortTaken(TritonRuntimeError):
    """Another process listens on one of Triton's ports."""


class StartFailed(TritonRuntimeError):
    """Triton ended, or was not ready in time; the message quotes its log."""


def missing_code(repository: Path) -> list[Path]:
    """The model.py files that models of the Python backend lack in the versions that Triton would load."""
    missing = []
    for name, (_, config) in sizing.read(repository).items():
        versions = sorted(int(folder.name) for folder in (repository / name).iterdir() if folder.name.isdecimal())
        if not config.all("version_policy") or config.all("version_policy", "latest"):
            versions = versions[-max(1, int(config.first("version_policy", "latest", "num_versions") or 0)) :]
        if config.first("backend") == "python":
            code = config.first("default_model_filename") or "model.py"
            files = [repository / name / str(version) / code for version in versions]
            missing += [file for file in files if not file.is_file()]
    return missing


class EmbeddedTriton:
    """A Triton server that belongs to this process and dies with it, in a process group that Ctrl-C does not reach.

    Every port may be 0: a free one is then taken. `cache_bytes` is the size of the response cache, 0 for none.
    `load_models` are loaded with the models that they need; `environment` is added to Triton's. `sizes` has the
    counts of models whose configuration has none, by default for this machine's cores. `on_log` gets each line of
    Triton's log, prefixed, on another thread. After the process has ended, `start` may be called again and keeps the
    ports.
    """

    name = "Triton"

    def __init__(
        self,
        runtime: TritonRuntime,
        model_repository: Path,
        *,
        on_log: Callable[[str], None],
        host: str = LOOPBACK,
        grpc_port: int = 0,
        http_port: int = 0,
        metrics_port: int = 0,
        cache_bytes: int = 256 * MIB,
        load_models: Iterable[str] = ("*",),
        extra_arguments: Iterable[str] = (),
        environment: Mapping[str, str] | None = None,
        sizes: Plan | None = None,
    ) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._stopped = True
        """Whether the process group has ended: its number may then be reused."""
        self._reaper: subprocess.Popen[bytes] | None = None
        self.runtime = runtime
        self.model_repository = model_repository.resolve()
        sizes = sizes or plan(usable_cores(), 0)
        self._sized = SizedRepository(self.model_repository, sizes)
        self._load_threads = sizes.load_threads
        self.host = host
        self.grpc_port, self.http_port, self.metrics_port = grpc_port, http_port, metrics_port
        self.cache_bytes = cache_bytes
        self._on_log = on_log
        self.load_models = tuple(load_models)
        self._extra_arguments = tuple(extra_arguments)
        self._environment = dict(environment or {})
        self._shm_prefix = f"triton_{os.getpid()}_{secrets.token_hex(4)}_"
        self._log_thread: threading.Thread | None = None
        self._lines: deque[str] = deque(maxlen=KEPT_LOG_LINES)
        self._was_ready = False
        self._finished = threading.Event()

    @property
    def alive(self) -> bool:
        """Whether Triton's own process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The id of Triton's own process, and of its session, also after it has ended; None before the first start."""
        return self._process.pid if self._process else None

    def poll(self) -> int | None:
        """The exit code of a process that has ended, negative for a signal; None while it runs or before a start."""
        return self._process.poll() if self._process else None

    @property
    def url(self) -> str:
        """The gRPC endpoint as host:port."""
        return authority(self.host, self.grpc_port)

    @property
    def http_url(self) -> str:
        """The HTTP endpoint as a URL without a path."""
        return f"http://{authority(self.host, self.http_port)}"

    def start(self) -> None:
        """Start the process, without waiting for it; raises PortTaken or TritonRuntimeError."""
        if self.alive:
            raise TritonRuntimeError(f"this Triton is already running, as process {self.pid}")
        if not self.model_repository.is_dir():
            raise TritonRuntimeError(f"there is no model repository at {self.model_repository}")
        for path in (self.model_repository, self.runtime.backend_directory):
            if not str(path).isascii() or any(map(str.isspace, str(path))):
                # The backend splits its stubs' command line at spaces, then waits for ever for a stub that died. The
                # stubs' Python has no locale, so it can open no path beyond ASCII.
                how = "move it" if path == self.model_repository else "set XDG_CACHE_HOME"
                raise TritonRuntimeError(
                    "Triton's Python backend cannot handle spaces, or letters beyond ASCII, in a path, such as "
                    f"{path}: {how} to a path without them"
                )
        if "*" in self.load_models and not self._was_ready:
            if hidden := [path for path in self.model_repository.iterdir() if path.is_dir() and is_hidden(path.name)]:
                raise TritonRuntimeError(f"Triton takes each folder of a repository for a model: remove {hidden[0]}")
            if missing := missing_code(self.model_repository):
                raise TritonRuntimeError(
                    f"there is no {missing[0]}, for which Triton would wait for ever: put it back, or remove the model "
                    f"{missing[0].parent.parent.name}"
                )
        try:
            self._sized.update()
        except OSError as exc:
            raise TritonRuntimeError(f"cannot write configurations of the models: {exc}") from exc
        compile_models(self.model_repository)
        self._take_ports()
        self._lines.clear()
        self._finished.clear()
        command = [str(self.runtime.tritonserver), *self._arguments()]
        try:
            self._process = subprocess.Popen(
                command,
                env={**self.runtime.environment(), **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            self._stopped = False
            self._log_thread = threading.Thread(
                target=self._read_log, args=(self._process,), name="triton-log", daemon=True
            )
            self._log_thread.start()
            command = [*REAPER, str(self._process.pid)]
            self._reaper = subprocess.Popen(
                command, env=child_environment(), stdin=subprocess.PIPE, start_new_session=True
            )
        except OSError as exc:
            self.stop(grace_seconds=0)
            raise TritonRuntimeError(f"cannot start {command[0]}: {exc}") from exc

    def _read_log(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.append(line.rstrip("\n"))
            self._on_log(f"{LOG_PREFIX}{self._lines[-1]}")
            if FINISHED in line:
                self._finished.set()
        process.stdout.close()
        process.wait()

    def update_sizes(self) -> None:
        """Complete the configurations of models that were added or edited since the start; call this periodically."""
        # A model whose files disappear meanwhile, or a full disk: tried again at the next call.
        with contextlib.suppress(OSError):
            self._sized.update()

    def ready(self) -> bool:
        """Whether the server and all its models are ready, by its own report."""
        return self._is_ok("/v2/health/ready")

    def answers(self) -> bool:
        """Whether the server reports that it is alive, regardless of its models; waits for two seconds at most."""
        return self._is_ok("/v2/health/live")

    def hangs(self) -> bool:
        """Whether the server accepts a connection but does not answer within two seconds.

        A server that is still starting accepts no connections.
        """
        try:
            get(reachable(self.host), self.http_port, "/v2/health/live", timeout_seconds=RESPONSE_TIMEOUT_SECONDS)
        except TimeoutError:
            return True
        except OSError:
            return False
        return False

    def _is_ok(self, path: str) -> bool:
        return is_ok(reachable(self.host), self.http_port, path, timeout_seconds=RESPONSE_TIMEOUT_SECONDS)

    def wait_ready(self, timeout_seconds: float = 120.0) -> None:
        """Wait until `ready`; raises StartFailed with Triton's reasons if it ends before, or is not ready in time."""
        match wait_ready(self.ready, lambda: self.alive, timeout_seconds):
            case Waited.ENDED:
                self._join_log()
                raise self._failed(f"Triton ended with code {self.poll()} while it started")
            case Waited.LATE:
                raise self._failed(f"Triton was not ready after {timeout_seconds:g} s")
        self._was_ready = True

    def stop(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Stop Triton: requests in flight may finish within the grace period, then the process group is killed.

        Returns when all of its processes have ended. Stopping a stopped Triton does nothing.
        """
        if self._process is None or self._stopped:
            return
        if grace_seconds and self.alive:
            deadline = time.monotonic() + grace_seconds
            self._process.terminate()
            while self.alive and not self._finished.is_set() and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
            if self.alive and self._finished.is_set():
                time.sleep(LAST_RESPONSES_SECONDS)
        _kill_group(self._process)
        self._stopped = True
        if self._reaper is not None:
            self._reaper.kill()
            self._reaper.communicate()
            self._reaper = None
        self._join_log()
        for region in SHARED_MEMORY.glob(f"{self._shm_prefix}*"):
            region.unlink(missing_ok=True)
        self._sized.remove()

    def kill(self) -> None:
        """Kill all processes, also while `stop` waits; for signal handlers."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def __enter__(self) -> "EmbeddedTriton":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _take_ports(self) -> None:
        held = []
        try:
            for field in ("grpc_port", "http_port", "metrics_port"):
                port = getattr(self, field)
                listener = socket.socket()
                held.append(listener)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    listener.bind((self.host, port))
                except OSError as exc:
                    name = field.removesuffix("_port")
                    raise PortTaken(
                        f"Triton's {name} port {port} on {self.host} cannot be used: {exc.strerror}; stop what "
                        "listens there, or choose another port"
                    ) from exc
                setattr(self, field, listener.getsockname()[1])
        finally:
            for listener in held:
                listener.close()

    def _arguments(self) -> list[str]:
        cache = [f"--cache-config=local,size={self.cache_bytes}"] if self.cache_bytes else []
        return [
            f"--model-repository={self._sized.path}",
            sizing.ARGUMENT,
            f"--backend-directory={self.runtime.backend_directory}",
            # Explicit, since only then can a model whose stub died be unloaded and loaded again.
            "--model-control-mode=explicit",
            *(f"--load-model={model}" for model in self.load_models),
            # A faulty model fails the first start, with the reason. It must not fail a later restart, which may run
            # unattended: the other models are to be served again.
            *(("--exit-on-error=false", "--strict-readiness=false") if self._was_ready else ()),
            # Auto-completion would start every Python model a second time; these configurations are complete.
            "--disable-auto-complete-config",
            # Each load starts processes, which take the cores from calls.
            f"--model-load-thread-count={self._load_threads}",
            f"--cache-directory={self.runtime.cache_directory}",
            *cache,
            f"--grpc-address={self.host}",
            f"--grpc-port={self.grpc_port}",
            f"--http-address={self.host}",
            f"--http-port={self.http_port}",
            f"--metrics-address={self.host}",
            f"--metrics-port={self.metrics_port}",
            # The gateway pings idle connections to detect a dead server; by default Triton answers that with GOAWAY.
            "--grpc-http2-min-recv-ping-interval-without-data=1000",
            "--grpc-http2-max-ping-strikes=0",
            f"--exit-timeout-secs={EXIT_TIMEOUT_SECONDS}",
            f"--backend-config=python,shm-region-prefix-name={self._shm_prefix}",
            f"--backend-config=python,shm-default-byte-size={SHM_BYTES}",
            f"--backend-config=python,shm-growth-byte-size={SHM_GROWTH_BYTES}",
            *self._extra_arguments,
        ]

    def _join_log(self) -> None:
        if self._log_thread is not None:
            self._log_thread.join(timeout=5.0)

    def _failed(self, text: str) -> StartFailed:
        """The error with the reasons in Triton's log, a line each."""
        reasons = error_lines(self._lines) or list(self._lines)[-5:]
        if not reasons:
            return StartFailed(f"{text}. Its log is empty.")
        return StartFailed(f"{text}. Its log:", *(f"  {reason}" for reason in reasons))


def _kill_group(process: "subprocess.Popen[str]") -> None:
    """Kill a process group by its leader, which may have ended already; returns when the group has ended.

    Call this once for each leader: afterwards the group's number may be reused.
    """
    deadline = time.monotonic() + GROUP_TIMEOUT_SECONDS
    with contextlib.suppress(ProcessLookupError):  # the group has ended
        while time.monotonic() < deadline:
            os.killpg(process.pid, signal.SIGKILL)
            # The leader first, by its own Popen, which must not miss the exit code.
            if process.poll() is not None:
                _reap(process.pid)
            time.sleep(POLL_SECONDS)
    process.wait()


def _reap(group: int) -> None:
    # In a container this process may be process 1, which inherits the leader's orphans; a zombie stays in its group
    # until its parent waits for it.
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
