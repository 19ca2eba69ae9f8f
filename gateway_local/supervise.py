"""The process of `gateway up` and `gateway triton run`: starts Triton and the API, and keeps them running.

python -m gateway_local.supervise HANDLE    the descriptor of a file with a pickled Table

Standard library only, since it lives as long as the service: it takes a third of what the settings need.
"""

import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TextIO, cast

from gateway.errors import UserError
from gateway.log_stream import LogStream
from gateway.machine.memory import killed_for_memory
from gateway.machine.service_record import ServiceRecord
from gateway.server.supervisor import replanned
from gateway.server.workers import MAX_DEATHS, Plan, Restarts, Workers, hung_up
from gateway_client.visible import visible
from gateway_local.children import ApiFailed, wait_for_api
from gateway_local.display import Display, Say
from gateway_local.hosts import authority
from gateway_local.server import EmbeddedTriton, StartFailed
from gateway_local.server_log import concerns_a_gpu_alone
from gateway_local.table import Api, Table

POLL_SECONDS = 0.5
ANSWER_SECONDS = 2.0
"""Time between two questions whether Triton answers."""
HANGS_AFTER = 3
"""Consecutive questions without an answer; each waits for 2 s, so a hang is found within about ten seconds."""
CHECK_SECONDS, REPORT_SECONDS = 5.0, 60.0
"""Time between two checks of files and of processes killed by the kernel, and between two reports of these."""
IF_LATE = "If it was still loading models, give it longer with GATEWAY_TRITON_START_TIMEOUT_SECONDS"


class GivenUp(UserError):
    """Triton keeps dying; the message says how it ended."""


def main() -> None:
    """Run the table of an open file until SIGINT or SIGTERM; an error that users can fix is one sentence."""
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        table: Table = pickle.load(file)  # noqa: S301  # of `become_supervisor`
    # A log that cannot be written must not stop a service.
    sys.stderr = cast("TextIO", LogStream(sys.stderr))
    try:
        run(table)
    except (UserError, OSError) as exc:
        lines = exc.args if isinstance(exc, UserError) else (exc,)
        sys.stderr.write("\n  ".join(["error: " + visible(lines[0]), *map(visible, lines[1:])]) + "\n")
        sys.exit(1)


def run(table: Table) -> None:
    """Start the processes of the table, keep them running, and stop them on SIGINT or SIGTERM.

    SIGHUP replaces the API's workers; a second signal to stop kills everything. Raises TritonRuntimeError,
    ApiFailed or GivenUp.
    """
    display = Display(**table.shown)

    def log(line: str) -> None:
        if not (table.hides_gpu_errors and concerns_a_gpu_alone(line)):
            display.log(line)

    triton = EmbeddedTriton(**table.triton, on_log=log)
    children: list[EmbeddedTriton | Workers] = [triton]
    if table.api is None:
        with _stopping(children, display):
            _start(triton, table, display, lambda: None)
            _keep_running(triton, table, display.say)
    else:
        _run_with_api(table, table.api, triton, children, display)


def _run_with_api(
    table: Table, given: Api, triton: EmbeddedTriton, children: list[EmbeddedTriton | Workers], display: Display
) -> None:
    say = display.say
    host, port = given.plan.address
    record = ServiceRecord(port, command="up", host=host, ready=False, **given.record)

    def report(event: str, text: str, fields: Mapping[str, object]) -> None:
        say(text)
        record.follow(event, fields)

    workers = Workers(socket.socket(fileno=given.listener), report)

    def plan(values: Plan) -> Plan:
        return values._replace(variables={**values.variables, "GATEWAY_TRITON_URL": triton.url})

    def start_api() -> None:
        # Concurrently with Triton, whose address is known once its process runs.
        children.append(workers)
        workers.start(plan(given.plan), [given.process])

    with _recorded(record), _stopping(children, display):
        _start(triton, table, display, start_api)
        with display.waiting("starting the API"):
            wait_for_api(workers)
        record.update(ready=True, triton=triton.url)
        say(f"ready after {time.monotonic() - table.began:.1f} s: open http://{authority(host, port)}/ or try")
        for line in given.ready:
            say(line)
        say("Ctrl-C stops everything")
        terminal = sys.stderr.isatty()

        def hang_up(number: int, frame: FrameType | None) -> None:
            if hung_up(terminal):
                _interrupt(number, frame)
            workers.reload(lambda: plan(replanned(given.replan)))

        signal.signal(signal.SIGHUP, hang_up)
        _keep_running(triton, table, say, workers)


def _start(triton: EmbeddedTriton, table: Table, display: Display, meanwhile: Callable[[], None]) -> None:
    loading = time.monotonic()
    with display.waiting(f"starting Triton with the models of {triton.model_repository}"):
        start(triton, display.say, table.start_timeout_seconds, meanwhile)
    took = time.monotonic() - loading
    display.say(f"Triton has loaded its models after {took:.1f} s and listens on {triton.url} (gRPC)")


@contextmanager
def _stopping(children: list[EmbeddedTriton | Workers], display: Display) -> Iterator[None]:
    """Stop the children, the last one first, when the block ends, by a signal or an error."""
    # SIGINT too: a shell starts background jobs with SIGINT ignored, and Python would keep ignoring it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        yield
    except Stopped as stopped:
        display.say(f"stopping after {stopped}; Ctrl-C again ends everything at once")
    finally:

        def force(*_: object) -> None:
            # Only calls that are safe inside a handler: the code that waits for the children continues once they end.
            for child in children:
                child.kill()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, force)
        stopping = time.monotonic()
        for child in reversed(children):
            with display.waiting(f"stopping {child.name}"):
                child.stop()
        display.say(f"stopped after {time.monotonic() - stopping:.1f} s")


@contextmanager
def _recorded(record: ServiceRecord) -> Iterator[None]:
    try:
        yield
    finally:
        record.remove()


def _keep_running(triton: EmbeddedTriton, table: Table, say: Say, workers: Workers | None = None) -> None:
    """Restart what dies or hangs, until a signal interrupts; raises GivenUp or ApiFailed if it keeps dying."""
    restarter = TritonRestarter(triton, say, start_timeout_seconds=table.start_timeout_seconds)
    memory, sizes_at = KillReports(say), 0.0
    while True:
        restarter.check()
        memory.check()
        if workers is not None:
            workers.check()
            if workers.failure is not None:
                raise ApiFailed(f"the API ended with code {workers.failure} several times; its log may say why")
        if time.monotonic() >= sizes_at:  # the repository may be on a slow network disk
            triton.update_sizes()
            sizes_at = time.monotonic() + CHECK_SECONDS
        time.sleep(POLL_SECONDS)


class TritonRestarter:
    """Restarts a Triton that died or hangs; call `check` periodically, it never waits for long.

    The API detects and recovers models that fail, or were not loaded, inside a healthy Triton.
    """

    def __init__(
        self,
        triton: EmbeddedTriton,
        say: Say,
        *,
        start_timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._triton = triton
        self._say = say
        self._start_timeout_seconds = start_timeout_seconds
        self._clock = clock
        self._started_at = self._asked_at = clock()
        self._start_at: float | None = None
        """When to start Triton again; None while it runs."""
        self._ready = True
        self._silences = 0
        self._restarts = Restarts()

    def check(self) -> None:
        """Start Triton again if it died or hangs; raises GivenUp if it keeps dying."""
        if self._start_at is not None:
            if self._clock() >= self._start_at:
                self._start()
        elif not self._triton.alive:
            self._restart(f"Triton ended with code {self._triton.poll()}")
        elif self._clock() - self._asked_at >= ANSWER_SECONDS:
            self._asked_at = self._clock()
            self._check_answers()

    def _check_answers(self) -> None:
        if not self._ready:
            self._ready = self._triton.ready()
            if self._ready:
                self._say(f"Triton answers again after {self._clock() - self._started_at:.1f} s")
                self._silences = 0
                return
            if self._clock() - self._started_at > self._start_timeout_seconds:
                self._restart(f"Triton was not ready after {self._start_timeout_seconds:g} s")
                return
            silent = self._triton.hangs()
        else:
            silent = not self._triton.answers()
        self._silences = self._silences + 1 if silent else 0
        if self._silences >= HANGS_AFTER:
            self._restart("Triton does not answer")

    def _restart(self, why: str) -> None:
        self._triton.stop(grace_seconds=0)
        pause_seconds = self._restarts.pause_seconds(self._clock() - self._started_at)
        if pause_seconds is None:
            raise GivenUp(f"{why} {MAX_DEATHS + 1} times in a row; its log may say why")
        self._say(f"{why}; starting it again in {pause_seconds:g} s")
        # No sleep here: the checks of other processes must not wait for this one.
        self._start_at = self._clock() + pause_seconds

    def _start(self) -> None:
        self._triton.start()
        self._start_at = None
        self._started_at = self._asked_at = self._clock()
        self._ready = False
        self._silences = 0


def start(
    triton: EmbeddedTriton, say: Say, timeout_seconds: float, meanwhile: Callable[[], None] = lambda: None
) -> None:
    """Start Triton, call `meanwhile`, and wait until Triton is ready; raises StartFailed.

    A Triton that crashes meanwhile is started once more: on a busy machine its Python backend crashes if a model's
    process does not report in time. A Triton that exits by itself would exit again.
    """
    killed = killed_for_memory()
    triton.start()
    meanwhile()
    try:
        triton.wait_ready(timeout_seconds)
    except StartFailed as exc:
        if (more := killed_for_memory()) > killed:
            raise StartFailed(*exc.args, killed_text(more - killed)) from exc
        code = triton.poll()
        if code is None:
            raise StartFailed(*exc.args, IF_LATE) from exc
        if code >= 0:
            raise
        say(f"Triton crashed while it started (signal {-code}); starting it once more")
        triton.stop(0)
        triton.start()
        triton.wait_ready(timeout_seconds)


class KillReports:
    """Reports processes that the kernel kills because memory runs out, at most once a minute."""

    def __init__(self, say: Say, killed: Callable[[], int] = killed_for_memory) -> None:
        self._say = say
        self._killed = killed
        self._reported = killed()
        self._next = 0.0

    def check(self) -> None:
        """Report processes killed since the last call; call this periodically."""
        if time.monotonic() < self._next:
            return
        killed = self._killed()
        self._next = time.monotonic() + (REPORT_SECONDS if killed > self._reported else CHECK_SECONDS)
        if killed > self._reported:
            self._say(f"warning: {killed_text(killed - self._reported)}")
        self._reported = killed


def killed_text(count: int) -> str:
    """How many processes the kernel killed, and what to do."""
    return (
        f"memory ran out, and the kernel killed {count} process{'es' * (count > 1)}: `gateway doctor` shows what the "
        "models need and how to make them need less"
    )


class Stopped(KeyboardInterrupt):
    """SIGINT or SIGTERM has arrived; the message is its name."""


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # the signature of a signal handler
    raise Stopped(signal.Signals(number).name)


if __name__ == "__main__":
    main()
