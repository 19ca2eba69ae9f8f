"""The worker processes that serve the API: started, watched, replaced without a refused request, and stopped.

Standard library only, since the process that supervises them lives as long as the service: `gateway serve`
(`gateway.server.supervisor`) or `gateway up`. A worker is `gateway.worker`.
"""

import contextlib
import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

PR_SET_PDEATHSIG = 1  # prctl(2)
SO_ATTACH_FILTER = 26  # socket(7)
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
CACHE_SECRET = "GATEWAY_CACHE_SECRET"  # noqa: S105  # the name of a variable
START_FAILED = 3
"""The exit code of a service that could not start, as uvicorn's."""

STARTED, READY, BEAT, CLOSING = b"s", b"r", b".", b"c"
"""Messages of a worker on its pipe: it listens; it classifies images; its event loop runs; it will accept no more."""
BEAT_SECONDS = 5.0
HANG_SECONDS = 30.0
"""Longest time without a beat, after which a worker is killed and replaced."""
START_SECONDS = 120.0
"""Longest time until a worker listens, and until the workers of a reload classify images."""
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS, STEADY_SECONDS, MAX_DEATHS = 0.5, 30.0, 60.0, 5
"""Pauses before a process is started again. They grow with each death within STEADY_SECONDS of a start."""
EXIT_SECONDS = 5.0
"""Time for a worker to end after its last request."""
POLL_SECONDS = 0.02

Report = Callable[[str, str, Mapping[str, object]], None]
"""Reports an event by its name in the log, as a sentence, and with fields."""


class Restarts:
    """How soon a process that has died is started again."""

    def __init__(self) -> None:
        self._deaths = 0

    def pause_seconds(self, ran_seconds: float) -> float | None:
        """The pause after a death; None if there were more than MAX_DEATHS in a row.

        After it has run for STEADY_SECONDS, earlier deaths no longer count.
        """
        self._deaths = 1 if ran_seconds > STEADY_SECONDS else self._deaths + 1
        if self._deaths > MAX_DEATHS:
            return None
        return min(FIRST_PAUSE_SECONDS * 2.0 ** (self._deaths - 1), LAST_PAUSE_SECONDS)


class Plan(NamedTuple):
    """The configuration of workers, computed from the settings."""

    address: tuple[str, int]
    """Host and port of the API."""
    variables: Mapping[str, str]
    """Environment variables that differ from this process's."""
    workers: int
    stop_seconds: float
    """Longest time of an orderly stop."""
    has_secret: bool
    """Whether the settings name a secret of the cache; if not, all workers get a random one."""
    log_as_text: bool

    @classmethod
    def of(cls, values: Sequence[Any]) -> Self:
        """A plan from the list that JSON makes of it."""
        (host, port), *others = values
        return cls((host, port), *others)


class Process(NamedTuple):
    """A process that has started to import, and waits for its variables."""

    pid: int
    messages: int
    """A descriptor from which its messages are read."""
    variables: int
    """A descriptor to which its variables are written, in JSON; it ends if this is closed before."""


def start_process(listener: socket.socket) -> Process:
    """Start a worker's process; this process, or the program that replaces it, becomes its parent."""
    messages, theirs = os.pipe()
    stdin, variables = os.pipe()
    os.set_blocking(messages, False)
    command = [sys.executable, "-m", "gateway.worker", str(listener.fileno()), str(theirs), str(os.getpid())]
    inherited = [each for each in (listener.fileno(), theirs) if not os.get_inheritable(each)]
    try:
        for each in inherited:
            os.set_inheritable(each, True)  # noqa: FBT003  # its only form
        # A new session: Ctrl-C on a terminal reaches the supervisor alone.
        pid = os.posix_spawn(
            sys.executable, command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, stdin, 0)], setsid=True
        )
    except OSError:
        os.close(messages)
        os.close(variables)
        raise
    finally:
        for each in inherited:
            os.set_inheritable(each, False)  # noqa: FBT003
        os.close(theirs)
        os.close(stdin)
    return Process(pid, messages, variables)


class Worker:
    """One process that serves."""

    def __init__(self, process: Process, variables: Mapping[str, str]) -> None:
        self.pid, self._messages, handle = process
        os.set_inheritable(self._messages, False)  # noqa: FBT003
        self.code: int | None = None
        """The exit code of a process that has ended, negative for a signal."""
        with contextlib.suppress(BrokenPipeError), os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(variables, file)
        self.heard: set[bytes] = set()
        self.replaced_at: float | None = None
        """When its successor starts, after it has died."""
        self.started_at = self._heard_at = time.monotonic()

    def alive(self) -> bool:
        """Whether it runs; reads its messages."""
        with contextlib.suppress(OSError):  # nothing was written, or the pipe is closed
            while data := os.read(self._messages, 4096):
                self.heard.update(bytes([each]) for each in data)
                self._heard_at = time.monotonic()
        return self._wait(os.WNOHANG) is None

    def hangs(self) -> bool:
        """Whether it has been silent for too long."""
        return time.monotonic() - self._heard_at > (HANG_SECONDS if STARTED in self.heard else START_SECONDS)

    def excuse(self) -> None:
        """Restart the time of its silence, since no process ran meanwhile."""
        self._heard_at = time.monotonic()

    def send(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self._wait(os.WNOHANG) is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it with its children; for signal handlers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill it with its children, and wait for its end."""
        self.kill()
        self._wait(0)
        if self._messages >= 0:
            os.close(self._messages)
            self._messages = -1

    def _wait(self, options: int) -> int | None:
        if self.code is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # SIGCHLD is ignored, as the parent of this process may do: the code is lost
                pid, status = self.pid, 0
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code


class Generation:
    """Workers with the same settings; several share a folder of metrics."""

    def __init__(self, listener: socket.socket, plan: Plan, secret: str, started: Sequence[Process] = ()) -> None:
        self.plan = plan
        self._listener = listener
        self._folder = tempfile.mkdtemp(prefix="gateway-workers-") if plan.workers > 1 else None
        secrets_of = {} if plan.has_secret else {CACHE_SECRET: secret}
        shared = {SHARED_FOLDER: self._folder} if self._folder else {}
        self._variables = {**secrets_of, **plan.variables, **shared}
        self.workers = [Worker(each, self._variables) for each in started]
        self.workers += [self.new() for _ in range(plan.workers - len(started))]

    def new(self) -> Worker:
        """Start a worker."""
        return Worker(start_process(self._listener), self._variables)

    def all_heard(self, what: bytes) -> bool:
        """Whether each worker has written something."""
        return all(what in each.heard for each in self.workers)

    def alive(self) -> list[Worker]:
        """The running workers; reads their messages."""
        return [each for each in self.workers if each.alive()]

    def send(self, number: int) -> None:
        """Send a signal to each worker."""
        for each in self.workers:
            each.send(number)

    def end(self) -> None:
        """Kill what still runs, and remove the folder."""
        for each in self.workers:
            each.end()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


class Refused(Exception):
    """The settings do not allow a reload; the message is the reason."""


class Workers:
    """Keeps the workers of a plan running on a socket; call `check` periodically, it never waits for long."""

    name = "the API"

    def __init__(self, listener: socket.socket, report: Report) -> None:
        self._listener = listener
        self._report = report
        self._secret = secrets.token_hex(32)
        self._serving: Generation | None = None
        self._starting: Generation | None = None
        """The successor of `_serving`, of which not every worker classifies images yet."""
        self._retiring: list[Generation] = []
        self._late_at = 0.0
        self._was_up = False
        """Whether any worker has ever listened: if not, the settings are wrong, and another one would fail as well."""
        self._restarts = Restarts()
        self._checked_at = time.monotonic()
        self._replan: Callable[[], Plan] | None = None
        """Computes the plan of the next reload, if one was requested."""
        self.failure: int | None = None
        """The exit code of a worker, if it is not worth replacing."""

    @property
    def pids(self) -> list[int]:
        """The processes that serve."""
        return [each.pid for each in self._serving.workers] if self._serving else []

    @property
    def ready(self) -> bool:
        """Whether each worker has classified an image."""
        return self._serving is not None and self._serving.all_heard(READY)

    def start(self, plan: Plan, started: Sequence[Process] = ()) -> None:
        """Start the first workers, of which some processes may have `started`, without waiting for them."""
        self._serving = Generation(self._listener, plan, self._secret, started)
        self.failure, self._restarts = None, Restarts()

    def reload(self, replan: Callable[[], Plan]) -> None:
        """Have `check` start workers with the plan that `replan` returns, or raises Refused for.

        The present workers are retired when the new ones are ready. Safe in signal handlers.
        """
        self._replan = replan

    def check(self) -> None:
        """Replace workers that died or hang, complete a reload, and clean up after workers that have retired."""
        now = time.monotonic()
        if now - self._checked_at > HANG_SECONDS / 2:  # this process was stopped, and perhaps the workers with it
            for worker in self._serving.workers if self._serving else ():
                worker.excuse()
        self._checked_at = now
        for each in list(self._retiring):
            if not each.alive():
                each.end()
                self._retiring.remove(each)
        if self._starting:
            self._check_reload(self._starting)
        elif self._replan and self._serving:
            replan, self._replan = self._replan, None
            self._begin_reload(replan, self._serving)
        if self._serving and self.failure is None:
            for worker in list(self._serving.workers):
                self._check_worker(self._serving, worker)

    def _begin_reload(self, replan: Callable[[], Plan], serving: Generation) -> None:
        try:
            plan = replan()
        except Refused as exc:
            self._refuse(str(exc))
            return
        if plan.address != serving.plan.address:
            self._refuse("another host or port needs a restart")
            return
        for each in self._retiring:  # of an earlier reload: a third generation would take memory
            each.send(signal.SIGTERM)
        self._starting = Generation(self._listener, plan, self._secret)
        self._late_at = time.monotonic() + START_SECONDS

    def _refuse(self, fault: str) -> None:
        """Report that a reload failed; the present workers continue."""
        if self._starting:
            self._starting.end()
            self._starting = None
        self._report("reload_failed", f"not reloaded, and the workers go on as before: {fault}", {"reason": fault})

    def _check_reload(self, new: Generation) -> None:
        if len(new.alive()) < len(new.workers):
            self._refuse("a new worker ended; the log has its reason")
        elif new.all_heard(READY):
            assert self._serving is not None
            self._serving.send(signal.SIGUSR1)
            self._retiring.append(self._serving)
            self._serving, self._starting = new, None
            self._restarts = Restarts()
            self._report("reloaded", "reloaded: new workers serve, the old ones finish", {"pids": self.pids})
        elif time.monotonic() > self._late_at:
            self._refuse(f"the new workers were not ready after {START_SECONDS:g} s; GET /health/ready may say why")

    def _check_worker(self, serving: Generation, worker: Worker) -> None:
        now = time.monotonic()
        if worker.replaced_at is not None:
            if now >= worker.replaced_at:
                serving.workers[serving.workers.index(worker)] = serving.new()
            return
        alive = worker.alive()
        self._was_up |= STARTED in worker.heard
        if alive and not worker.hangs():
            return
        worker.end()
        code = worker.code
        pause = self._restarts.pause_seconds(now - worker.started_at)
        if pause is None or not self._was_up:
            self.failure = code
            return
        how = f"did not answer for {HANG_SECONDS:g} s" if alive else f"ended with code {code}"
        text = f"a worker of the API {how}; starting another one in {pause:g} s"
        self._report("worker_died", text, {"pid": worker.pid, "code": code})
        worker.replaced_at = now + pause

    def stop(self, grace_seconds: float | None = None) -> None:
        """Stop in order: requests are answered, the port is closed; what remains after the grace period is killed."""
        generations = [each for each in (self._serving, self._starting, *self._retiring) if each]
        if self._serving and grace_seconds != 0:
            seconds = self._serving.plan.stop_seconds + EXIT_SECONDS if grace_seconds is None else grace_seconds
            deadline = time.monotonic() + seconds
            for each in generations:
                each.send(signal.SIGTERM)
            workers = [worker for each in generations for worker in each.workers]
            while sum(worker.alive() for worker in workers) and time.monotonic() < deadline:
                if self._listener.fileno() >= 0 and any(CLOSING in worker.heard for worker in workers):
                    accept_no_more(self._listener)
                    self._listener.close()
                time.sleep(POLL_SECONDS)
        self._listener.close()
        for each in generations:
            each.end()
        self._serving, self._starting, self._retiring = None, None, []

    def kill(self) -> None:
        """Kill all workers; for signal handlers."""
        for each in filter(None, (self._serving, self._starting, *self._retiring)):
            for worker in each.workers:
                worker.kill()


def hung_up(had_terminal: bool) -> bool:  # noqa: FBT001
    """Whether SIGHUP means that this process's terminal is gone, and not a reload."""
    return had_terminal and not os.isatty(2)


def die_with(supervisor: int) -> None:
    """Have the kernel kill this process when its supervisor dies; does nothing on other systems than Linux.

    A worker whose supervisor was killed would keep the port, and a new service could not have it.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have died before the call, and then no signal comes.
    if os.getppid() != supervisor:
        os._exit(1)


def accept_no_more(listener: socket.socket) -> None:
    """Have the kernel ignore a socket's new connections, so that the accepted ones can still be served.

    A connection that waits to be accepted is reset when the last process closes the socket. Clients that connect
    meanwhile try again, and are refused then.
    """
    drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # one BPF instruction: return 0 bytes
    program = struct.pack("HP", 1, ctypes.addressof(drop_all))
    with contextlib.suppress(OSError):  # no such filter on this kernel: a connection in that moment is reset
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
