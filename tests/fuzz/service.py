"""The gateway process that the fuzzer of HTTP and WebSockets sends to, and the checks after each batch of cases.

Faults are: the end of the process; status 500 or close code 1011; a connection that is neither answered nor closed; a
traceback in the log; a log that grows faster than the traffic; a long pause of the event loop; more processor time or
memory than the bytes account for.
"""

import contextlib
import functools
import json
import random
import socket
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.doubles.program import PROGRAM
from tests.processes import Gateway, running_gateway, wait_for

BATCH = 25
"""Number of cases between two checks of the process."""
LONGEST_PAUSE_SECONDS = 0.25
SECONDS_PER_BATCH, SECONDS_PER_MEGABYTE = 1.0, 0.5
MOST_MEMORY_BYTES = 200_000_000
LOGGED_BYTES_PER_REQUEST = 2_048
"""Bytes of log allowed for each request or stream, in addition to as many bytes as the client has sent."""
SHORTEST_REQUEST_BYTES = 40
"""A request has at least this many bytes: a case may send many requests on a connection."""
SECONDS_TO_END = 60.0
"""Within this time each connection must have a response or be closed; the settings below end silent ones earlier."""
MOST_FAULTS = 10
SETTINGS = {
    "upload_idle_timeout_seconds": 0.3,
    "max_wait_seconds": 1.0,
    "max_request_bytes": 30_000_000,
}


@dataclass(frozen=True, slots=True)
class Case:
    """Bytes to send over one connection, in pieces.

    `waits`: the first piece has the head of an answer before the second is sent. `reset`: in place of a read at the
    end, the connection is reset.
    """

    pieces: Sequence[bytes]
    reset: bool = False
    waits: bool = False

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.pieces))


@dataclass
class Report:
    """Number of requests, outcomes and faults of a run."""

    requests: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


class Server:
    """The gateway, and its costs since the last check."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._process = psutil.Process(gateway.process.pid)
        self._cpu_seconds = self._used()
        self._log_bytes = 0
        self.resident_bytes = gateway.resident_bytes()

    def cpu_seconds(self) -> float:
        before, self._cpu_seconds = self._cpu_seconds, self._used()
        return self._cpu_seconds - before

    def new_log(self) -> list[bytes]:
        """The lines that the log has got since the last call."""
        with self.gateway.log.open("rb") as log:
            log.seek(self._log_bytes)
            new = log.read()
        whole = new.rfind(b"\n") + 1
        self._log_bytes += whole
        return new[:whole].splitlines(keepends=True)

    def lives(self) -> bool:
        try:
            return httpx.get(f"{self.gateway.url}/health/live", timeout=SECONDS_TO_END).status_code == 200
        except httpx.HTTPError:
            return False

    def is_quiet(self) -> bool:
        """Whether only the check's connection is left."""
        gauges = {"gateway_connections": 1, "gateway_streams": 0}
        return all(self.gateway.metric(name) == value for name, value in gauges.items())

    def connect(self) -> socket.socket:
        return self.gateway.connect(SECONDS_TO_END)

    def _used(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system


Exchange = Callable[[Server, Case], str]
"""Sends a case and returns the outcome in short, `fault: …` for a fault."""


def run_cases(
    make: Callable[[random.Random], Case],
    exchange: Exchange,
    requests: int,
    seed: int = 0,
    *,
    at_once: int = 1,
    **settings: object,
) -> Report:
    """Send cases until their number or MOST_FAULTS is reached.

    `settings` override SETTINGS.
    """
    report = Report()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_gateway(Path(folder) / "log", program=PROGRAM, **{**SETTINGS, **settings}) as gateway,
        ThreadPoolExecutor(at_once) as pool,
    ):
        server = Server(gateway)
        answered = functools.partial(exchange, server)
        server.new_log()
        while report.requests < requests and len(report.faults) < MOST_FAULTS:
            began = report.requests
            # A separate generator for each case, so that each can be reproduced from the seed and its number.
            cases = [make(random.Random(f"{seed} {began + number}")) for number in range(BATCH)]
            for number, answer in enumerate(pool.map(answered, cases), began):
                report.answers[answer[:60]] += 1
                if answer.startswith("fault: "):
                    report.faults.append(f"seed {seed}, number {number}: {answer.removeprefix('fault: ')}")
            report.requests += BATCH
            which = f"seed {seed}, numbers {began} to {report.requests - 1}"
            if not server.lives():
                report.faults.append(f"{which}: it does not answer")
                break
            if _check(server, report, cases, which):  # the machine may have stalled; such cases are slow again
                list(pool.map(answered, cases))
                report.faults += _check(server, report, cases, which)
    return report


def _check(server: Server, report: Report, cases: Sequence[Case], which: str) -> list[str]:
    """Add the costs of the last cases, and their faults, to the report; returns the cases that were too slow."""
    with contextlib.suppress(AssertionError, httpx.HTTPError):
        wait_for(server.is_quiet, timeout_seconds=SECONDS_TO_END)
    log = server.new_log()
    events = [json.loads(line) for line in log if line.startswith(b"{")]
    sent, logged = sum(case.nbytes for case in cases), sum(map(len, log))
    cpu_seconds = server.cpu_seconds()
    # From the log of the heartbeat, without the time for which the kernel did not run the process.
    paused = [min(e["seconds"], e["cpu_seconds"]) for e in events if e["event"] == "loop_paused"]
    pause_seconds = max(paused, default=0.0)
    grown_bytes = server.gateway.resident_bytes() - server.resident_bytes
    slow, faults = [], []
    if pause_seconds > LONGEST_PAUSE_SECONDS:
        slow.append(f"{which}: the event loop paused for {pause_seconds:.2f} s")
    if cpu_seconds > SECONDS_PER_BATCH + SECONDS_PER_MEGABYTE * sent / 1e6:
        slow.append(f"{which}: {cpu_seconds:.1f} s of processor time for {sent} bytes")
    if grown_bytes > MOST_MEMORY_BYTES:
        faults.append(f"{grown_bytes / 1e6:.0f} MB of memory")
        server.resident_bytes += grown_bytes
    requests = sum(max(1, case.nbytes // SHORTEST_REQUEST_BYTES) for case in cases)
    if logged > sent + LOGGED_BYTES_PER_REQUEST * requests:
        faults.append(f"{logged} bytes of log for {sent} bytes")
    faults += dict.fromkeys(filter(None, (*map(_wrong_event, events), *map(_wrong_line, log))))
    report.faults += [f"{which}: {fault}" for fault in faults]
    return slow


def _wrong_event(event: dict[str, Any]) -> str:
    """Why an event of the log is a fault; "" where it is none."""
    code, status = event.get("code"), event.get("status", 0)
    if event["event"] == "unexpected_error" or "exception" in event or code == "internal_error" or status == 500:
        last = str(event.get("exception", "")).strip().rpartition("\n")[2]
        return f"in the log: {event['event'].partition(chr(10))[0]} {code or ''} {last[:200]}"
    return ""


def _wrong_line(line: bytes) -> str:
    return "" if line.startswith(b"{") else f"in the log: {line[:120]!r}"
